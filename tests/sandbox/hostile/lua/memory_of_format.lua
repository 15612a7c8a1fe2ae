-- expect: error:memory|script
local s = ('%s'):rep(200):format(table.unpack(setmetatable({}, {__index = function() return ('x'):rep(1e6) end}), 1, 200))
return #s
