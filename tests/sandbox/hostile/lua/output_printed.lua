-- expect: ok:1
for i = 1, 50000 do print(('p'):rep(200)) end
return 1
