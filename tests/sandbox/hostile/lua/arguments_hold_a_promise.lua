-- expect: error:script:not awaited
slow.echo{v = slow.echo{}}
