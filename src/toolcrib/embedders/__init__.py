"""Embedders: models of meaning behind the `Embedder` seam. Each imports its library when it is made, not before."""
