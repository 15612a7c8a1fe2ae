-- expect: error:cpu|wall
while true do (('a'):rep(1000)):gsub('.', function(c) return c end) end
