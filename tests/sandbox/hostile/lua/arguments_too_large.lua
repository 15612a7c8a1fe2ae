-- expect: error:script:larger than
slow.echo{s = ('x'):rep(2 << 20)}
