-- expect: error:script:error object
error(setmetatable({}, {__tostring = function() while true do end end}))
