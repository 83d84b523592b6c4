"""Replicas under Ray Serve, which places, scales and restarts them."""
