"""Labels of metrics: why a job never ran, why a process was replaced, stages, outcomes."""

from enum import StrEnum

START_UP = "start-up"
STAGES = ("decode", "preprocess", START_UP, "queue", "infer", "postprocess", "encode")
"""The usual stages of a request, in running order. A task may have others, too. `start-up` occurs
only if an instance group had to be started."""


class Rejection(StrEnum):
    """Why a job never ran.

    For the first three reasons, a job is rejected before it is queued, or a request before its jobs
    exist. For the others, a queued job is dropped.
    """

    QUEUE_FULL = "queue_full"
    DEADLINE = "deadline"  # it could not finish before its deadline
    NOT_READY = "not_ready"  # its instance group accepts no job
    SHED = "shed"  # dropped for a job of higher priority
    EXPIRED = "expired"  # the job's deadline passed while it waited
    CANCELLED = "cancelled"  # the client went away


class Restart(StrEnum):
    """Why a process was replaced."""

    CRASHED = "crashed"
    KILLED = "killed"  # from outside, for example for lack of memory
    STOPPED = "stopped"  # it was stopped from outside, and did not continue
    TIMEOUT = "timeout"  # a run or call took too long
    MEMORY = "memory"  # a predictor had grown too large, or a codec process ran out of memory
    CORRUPT = "corrupt"  # a reply of the process was malformed
    FAILED = "failed"  # a new process could not be opened
    LACKING = "lacking"  # no process could be started: the system lacked resources


OPENING_FAILURES = (Restart.FAILED, Restart.LACKING)
FAULTS = (Restart.CRASHED, Restart.TIMEOUT, Restart.CORRUPT)
"""The reasons that count as faults of the model itself."""
CODEC_RESTARTS = tuple(reason for reason in Restart if reason not in OPENING_FAILURES)
"""The reasons for which a codec process may be replaced."""


class ShadowOutcome(StrEnum):
    """Outcome of a request that was sampled to run on other instance groups in an idle moment."""

    REPLAYED = "replayed"  # run on each of them
    DROPPED = "dropped"  # an earlier request still waited, or no group could run this one
    FAILED = "failed"  # a predictor failed
