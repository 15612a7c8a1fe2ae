-- expect: error:script:nested deeper
json.decode(('['):rep(1000000))
