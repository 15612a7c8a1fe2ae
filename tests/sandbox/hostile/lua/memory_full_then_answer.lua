-- expect: any
local p = slow.big{n = 300000}
local t = {}
pcall(function() while true do t[#t + 1] = ('x'):rep(4000) .. #t end end)
local v = p:await()
return #v.s
