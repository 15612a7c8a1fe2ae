-- expect: error:cpu|wall
while true do pcall(function() while true do end end) end
