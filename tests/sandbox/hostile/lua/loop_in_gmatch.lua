-- expect: error:cpu|wall
for _ in (('a'):rep(30000)):gmatch(('a-'):rep(10) .. '!') do end
