-- expect: ok:[true,3,true,1]
local r = slow.fixture{}:await()
return {r.n == nil, #r.x, r.x[2] == null, r.x[1]}
