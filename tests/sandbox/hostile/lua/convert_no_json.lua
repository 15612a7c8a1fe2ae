-- expect: error:script:not valid JSON
json.decode('{"a":1,}')
