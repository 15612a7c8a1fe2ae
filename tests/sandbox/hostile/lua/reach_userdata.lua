-- expect: ok:[]
local seen, found = {}, json.array{}
local function walk(v, path)
  if type(v) == 'userdata' then found[#found + 1] = path end
  if type(v) ~= 'table' or seen[v] then return end
  seen[v] = true
  for k, x in next, v do walk(k, path .. '.key') walk(x, path .. '.' .. tostring(k)) end
end
walk(_G, '_G')
local p = slow.fixture{}
walk(p, 'promise') walk(p:await(), 'value')
for _, e in ipairs{select(2, pcall(calculator.add, 5)), select(2, pcall(function() slow.fail{}:await() end))} do walk(e, 'error') end
return found
