-- expect: error:script:cannot be changed
calculator.add = print
