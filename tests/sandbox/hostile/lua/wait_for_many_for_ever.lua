-- expect: error:wall
local all = {}
for i = 1, 50 do all[i] = slow.sleep{s = 3600} end
await_all(all)
