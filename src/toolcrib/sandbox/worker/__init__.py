"""What runs inside the locked-down process of a Lua script. Imports the standard library only, and nothing of ours."""
