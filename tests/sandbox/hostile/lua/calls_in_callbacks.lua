-- expect: ok:[1,2,3]
local t = {3, 1, 2}
table.sort(t, function(a, b) return slow.echo{v = a}:await().v < slow.echo{v = b}:await().v end)
return t
