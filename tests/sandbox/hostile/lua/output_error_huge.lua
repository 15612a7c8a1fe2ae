-- expect: error:script
error(('e'):rep(20000000))
