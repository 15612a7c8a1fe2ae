"""The ways to reach a server."""
