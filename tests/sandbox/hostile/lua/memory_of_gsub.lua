-- expect: error:memory
return (('a'):rep(200000)):gsub('a', ('b'):rep(100000))
