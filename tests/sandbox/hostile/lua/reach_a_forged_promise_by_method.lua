-- expect: error:script:
local p = slow.echo{}
p.await({id = 1})
