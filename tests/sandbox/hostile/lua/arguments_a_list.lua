-- expect: error:script:named arguments
calculator.add{1, 2}
