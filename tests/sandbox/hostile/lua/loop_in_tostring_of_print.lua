-- expect: error:cpu|wall
print(setmetatable({}, {__tostring = function() while true do end end}))
