"""Labels of metrics: why a job never ran, why a process was replaced, stages, outcomes."""

from enum import StrEnum

START_UP = "start-up"
STAGES = ("decode", "preprocess", START_UP, "queue", "infer", "postprocess", "encode")
"""The stages of a request in running order. `start-up` occurs only if a group had to be started."""


class Rejection(StrEnum):
    """Why a job never ran.

    The first three are the reasons why submit() or reserve() rejects a job. The others are the
    reasons why a queued job is dropped.
    """

    QUEUE_FULL = "queue_full"
    DEADLINE = "deadline"  # it could not finish before its deadline
    NOT_READY = "not_ready"
    SHED = "shed"  # dropped for a job of higher priority
    EXPIRED = "expired"  # the job's deadline passed while it waited
    CANCELLED = "cancelled"  # the client went away


class Restart(StrEnum):
    """Why a process was replaced."""

    CRASHED = "crashed"
    KILLED = "killed"
    STOPPED = "stopped"
    TIMEOUT = "timeout"
    MEMORY = "memory"
    CORRUPT = "corrupt"  # a reply of the process was malformed
    FAILED = "failed"  # a new process could not be opened
    LACKING = "lacking"  # no process could be started: the system lacked resources


OPENING_FAILURES = (Restart.FAILED, Restart.LACKING)
FAULTS = (Restart.CRASHED, Restart.TIMEOUT, Restart.CORRUPT)
"""The reasons for which the request in the process failed because of the model itself."""
CODEC_RESTARTS = tuple(reason for reason in Restart if reason not in OPENING_FAILURES)
"""The reasons for which a codec process may be replaced."""


class ShadowOutcome(StrEnum):
    """Outcome of the replay of a sampled request."""

    REPLAYED = "replayed"  # run on every group
    DROPPED = "dropped"  # an earlier request still waited, or no group could run this one
    FAILED = "failed"  # a predictor failed
