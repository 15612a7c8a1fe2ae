-- expect: error:script:has a key that is a boolean
return {[true] = 1}
