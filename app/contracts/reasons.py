"""The words that are counted: why a job never ran, why a process was replaced, stages, outcomes."""

from __future__ import annotations

STAGES = ("decode", "preprocess", "queue", "infer", "postprocess", "encode")
"""The parts of a request, in the order they run."""

REJECTIONS = ("queue_full", "deadline", "not_ready", "shed", "expired", "cancelled")
"""Why a job never ran. Refused by submit(): the first three. Taken from the queue: a low-priority
job shed for a normal one, a deadline that passed, a client that went away."""

RESTARTS = ("crashed", "killed", "stopped", "timeout", "memory", "failed")
"""Why a predictor process was replaced; "failed" means that the new one could not be opened."""

CODEC_RESTARTS = RESTARTS[:-1]
"""Why a codec process was replaced."""

SHADOW_OUTCOMES = ("replayed", "dropped", "failed")
"""What became of a sampled request: run on every group; given up, because an earlier one still
waited for an idle moment or there was no group to run it on; or a predictor failed."""
