"""Compares instance groups in the server's idle moments, and chooses default groups."""
