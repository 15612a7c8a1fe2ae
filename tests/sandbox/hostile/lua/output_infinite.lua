-- expect: error:script:JSON cannot carry
return math.huge
