"""Quality of the served models: figures measured on data, for `models verify --quality`."""
