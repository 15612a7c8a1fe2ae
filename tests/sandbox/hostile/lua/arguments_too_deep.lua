-- expect: error:script:nested deeper
local t = {}
for i = 1, 100 do t = {t} end
slow.echo{t = t}
