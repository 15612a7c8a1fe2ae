-- expect: error:script:outside a coroutine
coroutine.yield()
