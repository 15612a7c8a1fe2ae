-- expect: error:cpu|wall
while true do table.concat(table.pack(('x'):rep(100):byte(1, -1))) end
