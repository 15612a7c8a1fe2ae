"""Search: text in, hits out. Pure and deterministic."""
