"""Ranges for the official models that read text."""
