"""Code that runs inside worker processes. It imports only the standard library, and nothing else of toolcrib."""
