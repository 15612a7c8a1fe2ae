-- expect: ok:[{},[],[]]
return {{}, json.array{}, json.array()}
