"""Several servers as one: replicas that somebody else's engine places, scales and restarts."""
