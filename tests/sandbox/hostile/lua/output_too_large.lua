-- expect: error:script:larger than
return ('x'):rep(3 << 20)
