"""all-MiniLM-L6-v2 with int8 weights: data only."""
