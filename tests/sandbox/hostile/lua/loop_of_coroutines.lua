-- expect: error:cpu|wall
while true do coroutine.resume(coroutine.create(function() coroutine.yield() end)) end
