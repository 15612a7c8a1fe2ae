"""Remote MCP servers as tool providers."""
