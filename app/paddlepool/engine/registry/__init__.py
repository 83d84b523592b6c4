"""The model versions that are served: loading, replacing, unloading."""
