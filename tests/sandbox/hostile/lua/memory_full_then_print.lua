-- expect: ok:1
local t = {}
pcall(function() while true do t[#t + 1] = ('x'):rep(4000) .. #t end end)
t = nil
for i = 1, 200 do print(('z'):rep(1000)) end
return 1
