-- expect: error:script:JSON cannot carry
return {list = {0 / 0}}
