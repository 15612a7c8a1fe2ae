-- expect: error:cpu|wall
local n = 0
::top:: n = n + 1 goto top
