"""The model repository on disk: directories, configuration, manifests, self-tests."""
