-- expect: error:script:tool calls in one script
while true do calculator.add{a = 1, b = 1}:await() end
