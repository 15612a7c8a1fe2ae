-- expect: ok:{"a":[1,2]}
for _, lib in ipairs{string, table, math, utf8, coroutine, json} do for name in pairs(lib) do lib[name] = error end end
local keep, globals, next = result, _G, next
for name in next, globals do globals[name] = nil end
keep{a = {1, 2}}
