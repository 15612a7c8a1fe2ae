-- expect: error:cpu|wall
while true do for i = 1, 5e6 do end slow.echo{}:await() end
