-- expect: error:script:not valid JSON
json.decode('"\\ud800"')
