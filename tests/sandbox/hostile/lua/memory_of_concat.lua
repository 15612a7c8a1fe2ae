-- expect: error:memory
local part, all = ('x'):rep(1e6), {}
for i = 1, 1000 do all[i] = part end
return #table.concat(all)
