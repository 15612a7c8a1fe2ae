-- expect: error:script:cannot be changed
null.x = 1
