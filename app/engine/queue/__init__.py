"""Which job runs next, and which is refused."""
