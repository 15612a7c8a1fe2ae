-- expect: error:script:
return load(('('):rep(100000))()
