"""The processes that serve one address: workers, replicas, and how each starts and stops."""
