"""Processes at work, predictors and codecs alike: instances, groups, restarts."""
