-- expect: error:wall
slow.sleep{s = 3600}:await()
