-- expect: ok:[[1,null],{"a":"\ud83d\ude00"},"[1,null]"]
return {json.decode('[1,null]'), json.decode('{"a":"\\ud83d\\ude00"}'), json.encode{1, null}}
