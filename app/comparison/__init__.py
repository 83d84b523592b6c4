"""Predictor configurations against each other: same inputs, and believed when proven."""
