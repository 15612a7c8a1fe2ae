-- expect: error:memory|cpu|wall
local all = {}
for i = 1, 500 do all[i] = slow.sleep{s = 60, v = ('x'):rep(1000000)} end
