-- expect: error:script:not valid UTF-8
return '\u{D800}'
