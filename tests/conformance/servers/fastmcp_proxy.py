"""FastMCP's proxy in front of a server, over streamable HTTP, for comparison.

python fastmcp_proxy.py URL PORT
"""

import sys

from fastmcp.server import create_proxy

if __name__ == "__main__":
    create_proxy(sys.argv[1]).run(transport="http", host="127.0.0.1", port=int(sys.argv[2]), show_banner=False)
