-- expect: error:script:nested deeper
local t = {}
for i = 1, 5000 do t = {t} end
result(t)
