"""Compares predictor configurations on the same inputs; claims an effect only if it is proven."""
