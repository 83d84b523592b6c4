"""Verdicts on a configuration: whether it has an effect, how fast and how exact it is."""
