-- expect: ok:[1,null,"x"]
result(0)
result(1, nil, 'x')
