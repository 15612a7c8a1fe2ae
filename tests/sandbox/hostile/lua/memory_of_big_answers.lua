-- expect: error:memory|cpu|wall
local all = {}
for i = 1, 100 do all[i] = slow.big{n = 1000000}:await() end
