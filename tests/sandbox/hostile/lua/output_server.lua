-- expect: error:script:is the server
return {calculator}
