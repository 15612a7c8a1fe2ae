-- expect: error:script:await needs a call
await({id = 1, awaited = true})
