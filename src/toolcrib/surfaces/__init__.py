"""The surfaces: named sets of meta-tools that an agent sees instead of thousands of tools."""
