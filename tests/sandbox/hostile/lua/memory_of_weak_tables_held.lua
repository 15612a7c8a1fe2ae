-- expect: error:memory
local keep, weak = {}, setmetatable({}, {__mode = 'k'})
while true do local t = {} keep[#keep + 1] = t weak[t] = t end
