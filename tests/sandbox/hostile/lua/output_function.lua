-- expect: error:script:is a function
return {f = print}
