"""Scripts over a caller's tools: run them, check them, and store them under a name."""
