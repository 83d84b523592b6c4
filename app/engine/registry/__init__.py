"""Which model versions are served."""
