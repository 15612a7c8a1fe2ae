-- expect: error:memory
return #('x'):rep(1 << 30)
