-- expect: ok:[false,false,false]
return {getmetatable(calculator), getmetatable(slow.echo{}), getmetatable(null)}
