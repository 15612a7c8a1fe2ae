-- expect: error:script:not awaited
return {list = {slow.echo{}}}
