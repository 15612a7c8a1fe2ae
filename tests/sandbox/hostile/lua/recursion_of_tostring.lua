-- expect: error:script:C stack overflow
local t = setmetatable({}, {})
getmetatable(t).__tostring = function() return tostring(t) end
return tostring(t)
