-- expect: ok:{"1":1,"3":3,"x":true}
return {[1] = 1, [3] = 3, x = true}
