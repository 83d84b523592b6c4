"""Sources of weights and their readers."""
