-- expect: error:script:has no tool
return calculator['../slow/echo']{}
