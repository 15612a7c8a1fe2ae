-- expect: ok:"\u0000\u0000\u0000\u0005d{}"
print('\0\0\0\5d{}')
return '\0\0\0\5d{}'
