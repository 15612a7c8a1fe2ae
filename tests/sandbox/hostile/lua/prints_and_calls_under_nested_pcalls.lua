-- expect: error:memory:
-- Printing and calling lift the memory limit for a moment; where they fail for want of stack, it must be back.
local line = string.rep("p", 5000)
local function deep(n, work)
  if n == 0 then return work() end
  return pcall(deep, n - 1, work)
end
for depth = 180, 200 do
  deep(depth, function() print(line) end)
  deep(depth, function() return calculator.add{a = 1, b = 1}:await() end)
end
local held = {}
for i = 1, 8 do held[i] = string.rep(tostring(i % 10), 16 << 20) end
return "held " .. #held * 16
