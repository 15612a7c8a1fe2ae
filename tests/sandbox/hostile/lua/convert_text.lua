-- expect: ok:"\u0000\n\"\\h\u00e9\ud83d\ude00\u007f"
return slow.echo{v = '\0\n"\\hé😀\127'}:await().v
