-- expect: error:cpu|wall
while true do end
