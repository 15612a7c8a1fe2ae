-- expect: ok:[0.1,1e+300,5,-0.5,1.7976931348623157e+308]
return {0.1, 1e300, 5.0, -0.5, 0x1.fffffffffffffp1023}
