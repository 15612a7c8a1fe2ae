-- expect: error:cpu|wall
while true do local _ = (''):rep(1 << 40) end
