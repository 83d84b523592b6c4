"""What is on disk: directories, configuration, manifests, self-tests."""
