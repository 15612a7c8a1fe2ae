-- expect: error:script:__gc is not available
setmetatable({}, {__gc = function() end})
