"""Judges a new version by the answers to live requests, before it serves."""
