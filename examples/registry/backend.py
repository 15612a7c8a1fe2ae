"""An MCP server in its own process: `python backend.py`. Any other would do."""

from mcp.server.mcpserver import MCPServer

server = MCPServer("clock")


@server.tool()
def add_hours(time: str, hours: int) -> str:
    """Add hours to a time of day such as 21:30."""
    hour, _, minute = time.partition(":")
    return f"{(int(hour) + hours) % 24:02}:{minute}"


if __name__ == "__main__":
    server.run("stdio")
