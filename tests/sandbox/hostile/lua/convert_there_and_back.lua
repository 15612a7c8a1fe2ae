-- expect: ok:{"e":[],"n":null,"o":{},"x":[1,null,3]}
return slow.echo(slow.fixture{}:await()):await()
