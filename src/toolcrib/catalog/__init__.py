"""What tools exist: an immutable set of them, looked up in any spelling."""
