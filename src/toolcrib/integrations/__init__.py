"""Tools for agent frameworks: thin, one module a framework, each an extra."""
