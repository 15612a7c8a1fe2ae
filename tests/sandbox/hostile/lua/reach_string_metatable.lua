-- expect: ok:false
return getmetatable('')
