-- expect: error:script:is a thread
return coroutine.create(print)
