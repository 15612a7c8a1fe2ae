-- expect: error:cpu|wall
do local c <close> = setmetatable({}, {__close = function() while true do end end}) end
