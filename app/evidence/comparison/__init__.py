"""Predictor configurations compared on the same inputs; an effect is claimed only when proven."""
