-- expect: error:cpu|wall
coroutine.wrap(function() while true do end end)()
