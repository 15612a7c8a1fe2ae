"""Definitions of tools as something to check: a lint for texts that mislead a model, and pins against changes."""
