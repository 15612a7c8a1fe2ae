-- expect: error:script:error object
error{code = 5}
