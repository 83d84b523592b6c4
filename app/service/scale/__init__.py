"""Replicas that another engine places, scales and restarts: Ray Serve."""
