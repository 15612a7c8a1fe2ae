-- expect: error:cpu|wall
slow.echo{}:await()
while true do end
