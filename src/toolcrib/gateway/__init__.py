"""The gateway: what one caller may see of all tools, and the calls made on their behalf."""
