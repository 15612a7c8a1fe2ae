-- expect: error:script|memory|cpu|wall
local function f() return load('return ...')(f()) end
f()
