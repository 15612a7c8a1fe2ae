-- expect: error:cpu|wall|memory
while true do pcall(function() local t = {} while true do t[#t + 1] = ('y'):rep(1000) .. #t end end) end
