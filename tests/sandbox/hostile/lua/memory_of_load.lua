-- expect: error:memory
return load(('x = {' .. ('{},'):rep(4e6) .. '}'))()
