-- expect: ok:true
return (function() return _ENV end)() == _G and load('return _ENV')() == _G
