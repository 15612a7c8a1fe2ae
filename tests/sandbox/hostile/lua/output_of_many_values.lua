-- expect: error:script:larger than
local t = {}
for i = 1, 250000 do t[i] = 0 end
return t
