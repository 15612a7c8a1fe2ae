"""Prompts and resources of the servers behind the gateway, passed through to its clients."""
