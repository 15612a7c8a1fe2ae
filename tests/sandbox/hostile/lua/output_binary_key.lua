-- expect: error:script:not valid UTF-8
return {['\xff'] = 1}
