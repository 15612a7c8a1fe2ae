-- expect: error:script
error('\xff\xfe\0')
