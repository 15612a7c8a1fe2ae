-- expect: error:script:too many results
return select('#', table.unpack({}, 1, 1e8))
