-- expect: error:script:cannot be changed
slow.echo{}.await = print
