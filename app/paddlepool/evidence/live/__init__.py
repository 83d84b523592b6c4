"""Compares instance groups in the server's idle moments: proof, shadowing, choice of default."""
