-- expect: error:cpu|wall
repeat pcall(error) until false
