"""Models on disk: directories, their sources, and the networks they come from."""
