-- expect: ok:[9223372036854775807,-9223372036854775808,9007199254740993]
return {math.maxinteger, math.mininteger, slow.echo{v = 9007199254740993}:await().v}
