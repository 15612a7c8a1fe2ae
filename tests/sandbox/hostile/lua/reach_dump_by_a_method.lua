-- expect: error:script:
return (''):dump()
