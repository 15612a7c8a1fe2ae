-- expect: error:cpu|wall
load('while true do end')()
