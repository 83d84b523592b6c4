"""Models on disk: the repository, remote repositories to copy models from, and the networks.

Programs are exported from the networks.
"""
