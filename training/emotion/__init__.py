"""Training of the emotion classifier that is committed in ``model_repo/emotion``."""
