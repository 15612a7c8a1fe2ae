-- expect: ok:{"e":[],"n":1,"o":{},"x":[1,null,3]}
local r = slow.fixture{}:await()
r.n = 1
return r
