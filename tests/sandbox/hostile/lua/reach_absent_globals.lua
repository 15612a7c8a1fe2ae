-- expect: ok:""
local found = {}
for _, name in ipairs{'os', 'io', 'require', 'package', 'debug', 'dofile', 'loadfile', 'loadstring', 'python', 'ffi', 'jit',
  'collectgarbage', 'newproxy', 'module', 'setfenv', 'getfenv', 'warn', 'host_send', 'host_receive', 'arg', 'settings'} do
  if _G[name] ~= nil then found[#found + 1] = name end
end
return table.concat(found, ',')
