-- expect: error:cpu|wall
while true do pcall(calculator.add, {a = 1, b = 1}) end
