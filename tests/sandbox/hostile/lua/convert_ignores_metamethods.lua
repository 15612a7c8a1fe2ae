-- expect: ok:{"a":1}
return setmetatable({a = 1}, {__pairs = error, __index = error, __len = error, __eq = error})
