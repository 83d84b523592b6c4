"""Measurements of predictor configurations and models, and the verdicts on them."""
