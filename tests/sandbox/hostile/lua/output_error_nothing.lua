-- expect: error:script:nil
error()
