-- expect: ok:"18446744073709551616"
return slow.bigint{}:await().v
