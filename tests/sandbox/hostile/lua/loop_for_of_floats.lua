-- expect: error:cpu|wall
for i = 1, math.huge do end
