-- expect: error:script:both the number and the string
return {[5] = 1, ['5'] = 2}
