"""Predictor processes at work: instances, groups, restarts."""
