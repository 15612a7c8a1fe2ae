-- expect: error:cpu|wall
xpcall(error, function() while true do end end)
