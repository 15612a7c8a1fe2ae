-- expect: error:script:C stack overflow
local function f() return coroutine.wrap(f)() end
f()
