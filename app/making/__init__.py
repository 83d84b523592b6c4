"""Making of models: export of networks, derivation of int8 programs."""
