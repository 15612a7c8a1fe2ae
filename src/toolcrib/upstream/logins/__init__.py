"""Logins to servers: flows, tokens, and where they are kept."""
