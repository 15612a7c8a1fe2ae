-- expect: ok:false
return (xpcall(error, function(e) return error(e) end))
