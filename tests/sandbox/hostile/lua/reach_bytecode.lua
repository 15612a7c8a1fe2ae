-- expect: error:script:
return load('\27Lua' .. ('\0'):rep(100), 'x', 'b')()
