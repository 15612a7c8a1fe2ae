-- expect: error:cpu|wall|memory
load(function() return ' ' end)
