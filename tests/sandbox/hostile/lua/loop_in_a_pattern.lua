-- expect: error:cpu|wall
return (('a'):rep(60000)):find(('.-'):rep(9) .. 'z')
