-- expect: ok:1
local m = {}
local t = setmetatable({}, m)
m.__gc = function() while true do end end
t = nil
for i = 1, 1e5 do local _ = {} end
return 1
