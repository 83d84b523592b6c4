"""Judges a new version by the answers to live requests, before it replaces the current one."""
