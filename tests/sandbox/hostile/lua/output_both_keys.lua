-- expect: error:script:both the number and the text
return {[5] = 1, ['5'] = 2}
