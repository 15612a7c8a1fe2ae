-- expect: ok:[null,"nil"]
local f = load('\27LuaT\0', 'x', 'bt')
return {f == nil and null, tostring(string.dump)}
