-- expect: error:memory
local all = {}
for i = 1, math.huge do all[i] = function() return i end end
