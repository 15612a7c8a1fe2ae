"""What the use of a tool in a session is worth to it in a search."""
