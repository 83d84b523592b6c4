"""A child process whose start fails leaves nothing behind; its end has the right reason."""

import errno
import itertools
import os
import resource
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pytest

from paddlepool.contracts.errors import BackendError
from paddlepool.contracts.reasons import Restart
from paddlepool.engine.process.child import Child, ChildDied
from paddlepool.engine.process.environment import Limits
from tests.descriptors import open_descriptors
from tests.ran import wait_until

pytestmark = pytest.mark.slow  # real processes

TARGET = "tests.engine.backends.targets:open_double"
MOST = 24
"""More descriptors than a start takes."""


@contextmanager
def descriptors_left(count: int) -> Iterator[None]:
    """Let this process open at most `count` more files."""
    free = os.open(os.devnull, os.O_RDONLY)
    os.close(free)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + count, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_start_without_descriptors_left_keeps_none() -> None:
    """Whichever step of the start it is that finds none left: the next start may have to be it."""
    before = open_descriptors()
    codes: list[int | None] = []
    for count in range(MOST):
        with descriptors_left(count):
            try:
                Child(TARGET, {"options": {}}).close()
            except OSError as error:
                codes.append(error.errno)
        assert open_descriptors() <= before
        if len(codes) == count:
            break
    assert 8 <= len(codes) < MOST
    assert set(codes) == {errno.EMFILE}


def test_a_killed_child_that_the_system_has_not_removed_yet_was_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a busy machine, the end of a process takes longer than the end of its connection."""
    with closing(Child(TARGET, {"options": {}})) as child:
        wait, waits = child._process.wait, itertools.count()

        def waited(timeout: float | None = None) -> int:
            if next(waits) == 0:
                raise subprocess.TimeoutExpired("child", timeout or 0.0)
            return wait(timeout)

        child.put({"x": np.zeros(1, np.float32)})
        child.kill()
        wait_until(lambda: b") Z" in Path(f"/proc/{child.pid}/stat").read_bytes())
        monkeypatch.setattr(child._process, "wait", waited)
        with pytest.raises(ChildDied) as died:
            child.send({})
        assert died.value.reason is Restart.KILLED


@pytest.mark.parametrize(
    ("code", "raised"),
    [(errno.EAGAIN, OSError), (errno.ENOMEM, OSError), (errno.ENOENT, BackendError)],
    ids=str,
)
def test_what_the_system_lacks_for_a_moment_is_no_refusal(
    code: int, raised: type[Exception]
) -> None:
    """The model may be opened again; a file that is not there will not come by waiting."""
    with pytest.raises(raised):
        Child(TARGET, {"options": {"errno": code}})


def test_a_child_inherits_how_code_runs_and_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """It opens hostile bytes: of the environment it has what is listed, and what it was given."""
    for name in ("PADDLEPOOL_API_KEYS", "PADDLEPOOL_ADMIN_KEY", "AWS_SECRET_ACCESS_KEY", "TOKEN"):
        monkeypatch.setenv(name, "secret")
    switches = ("ONEDNN_MAX_CPU_ISA", "DNNL_VERBOSE", "FLAGS_x", "ORT_x", "OPENVINO_x", "LC_ALL")
    for name in switches:
        monkeypatch.setenv(name, "C")
    with closing(
        Child(TARGET, {"options": {}}, limits=Limits(environment={"GIVEN": "1"}))
    ) as child:
        lines = Path(f"/proc/{child.pid}/environ").read_text().split("\0")
    inherited = dict(line.split("=", 1) for line in lines if line)
    assert "secret" not in inherited.values()
    assert not any(name.startswith("PADDLEPOOL_") for name in inherited)
    assert {name for name in switches if inherited.get(name) == "C"} == set(switches)
    assert (inherited["GIVEN"], inherited["OMP_NUM_THREADS"]) == ("1", "1")
    assert inherited["PATH"] == os.environ["PATH"]


def test_a_refused_model_leaves_nothing() -> None:
    before = open_descriptors()
    with pytest.raises(BackendError, match="refused"):
        Child(TARGET, {"options": {"refuse": True}})
    assert open_descriptors() <= before
    child = Child(TARGET, {"options": {}})
    child.close()
    with Path(os.devnull).open() as file:
        child.close()
        os.fstat(file.fileno())
    assert child.resident_bytes() == 0
    assert open_descriptors() <= before
