-- expect: error:cpu|wall
table.sort({3, 2, 1}, function() while true do end end)
