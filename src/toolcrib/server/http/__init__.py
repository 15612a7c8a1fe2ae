"""The HTTP side of the server: connections, requests, sessions and streams."""
