-- expect: ok:2
print('\xff\0\27[31m')
return 2
