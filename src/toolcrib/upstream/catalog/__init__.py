"""What servers list: reading it, keeping it, and holding it back until it is trusted."""
