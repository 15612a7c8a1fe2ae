-- expect: error:memory|script|cpu|wall
local all = {}
for i = 1, 200 do all[i] = slow.big{n = 900000} end
await_all(all)
