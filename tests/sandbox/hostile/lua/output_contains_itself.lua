-- expect: error:script:result.a.b contains itself
local t = {a = {}}
t.a.b = t
result(t)
