-- expect: error:cpu|wall
table.move(setmetatable({}, {__index = function() return 0 end, __newindex = function() end}), 1, math.maxinteger - 1, 2)
