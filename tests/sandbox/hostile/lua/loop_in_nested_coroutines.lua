-- expect: error:cpu|wall
local function nest(n)
  if n == 0 then while true do end end
  coroutine.wrap(nest)(n - 1)
end
nest(50)
