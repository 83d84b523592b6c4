"""Makes model versions: exports networks, seals programs made elsewhere, derives int8 programs."""
