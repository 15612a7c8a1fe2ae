-- expect: error:script:larger than
local t = {1}
for i = 1, 30 do t = {t, t} end
return t
