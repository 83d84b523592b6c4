"""Makes models: exports networks and derives int8 programs."""
