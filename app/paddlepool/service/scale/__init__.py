"""Servers under Ray Serve, which places, scales and restarts them."""
