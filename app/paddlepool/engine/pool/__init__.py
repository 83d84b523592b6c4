"""Instances, groups and restarts of predictor and codec processes."""
