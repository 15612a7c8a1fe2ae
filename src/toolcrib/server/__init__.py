"""toolcrib as an MCP server: requests to surfaces, over stdio and HTTP."""
