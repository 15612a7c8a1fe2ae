"""Embedders: models that turn texts into vectors, behind the `Embedder` protocol."""
