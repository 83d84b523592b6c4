"""Verdicts on instance groups: whether a group takes effect, and which of several is best."""
