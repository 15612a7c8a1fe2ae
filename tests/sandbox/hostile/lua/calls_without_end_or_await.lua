-- expect: error:script:tool calls in one script
while true do slow.sleep{s = 60} end
