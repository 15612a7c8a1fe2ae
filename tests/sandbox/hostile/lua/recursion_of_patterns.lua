-- expect: error:script:pattern too complex
return (('a'):rep(300000)):match(('a?'):rep(300000) .. 'b')
