-- expect: error:memory|script
return #string.pack('!16' .. ('i16'):rep(1e6), 1)
