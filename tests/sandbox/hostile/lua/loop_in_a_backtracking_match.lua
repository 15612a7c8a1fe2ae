-- expect: error:cpu|wall
return (('a'):rep(5000)):match(('a*'):rep(10) .. 'b')
