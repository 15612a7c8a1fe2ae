-- expect: error:script:
error('prelude:1: host_send', 0)
