"""Processes that are started before they are needed."""

import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from paddlepool.contracts.errors import BackendError
from paddlepool.engine.backends.process import OPENVINO
from paddlepool.engine.process.child import Child
from paddlepool.engine.process.confinement import Confinement
from paddlepool.engine.process.environment import Limits
from paddlepool.engine.process.start import Spares
from paddlepool.tasks.codecs.program import SANDBOX
from tests.descriptors import open_descriptors

pytestmark = pytest.mark.slow  # real processes

ENVIRONMENT = {"GIVEN": "1"}
TARGET = f"{__name__}:open_listing"
PREPARED = {SANDBOX: "cv2", OPENVINO: "openvino", "no.such:module": "json"}
"""A module that is imported after each preparation."""


def open_listing(init: Mapping[str, Any]) -> tuple[Mapping[str, Any], object]:
    """Target of a child: whether it had imported the module, its threads, and its environment."""
    threads = len(list(Path("/proc/self/task").iterdir()))
    values = {
        "imported": init["module"] in sys.modules,
        "threads": threads,
        "given": os.getenv("GIVEN"),
    }
    return values, None


def start_thread() -> None:
    threading.Thread(target=threading.Event().wait, daemon=True).start()


@pytest.fixture
def spares() -> Iterator[Spares]:
    spares = Spares()
    yield spares
    spares.close()


@pytest.mark.parametrize(("prepare", "imported"), PREPARED.items())
def test_a_spare_has_imported_and_started_no_thread(
    prepare: str, imported: str, spares: Spares
) -> None:
    """Rules for files would not hold for a thread that is older than they are."""
    if prepare == OPENVINO:
        pytest.importorskip("openvino")
    spares.start(ENVIRONMENT, prepare=prepare, count=1)
    limits = Limits(environment=ENVIRONMENT)
    with closing(Child(TARGET, {"module": imported}, limits=limits, spares=spares)) as child:
        assert child.ready == {"imported": True, "threads": 1, "given": "1"}


def test_a_thread_that_is_older_than_the_rules_is_not_said_to_be_confined(spares: Spares) -> None:
    spares.start(ENVIRONMENT, prepare=f"{__name__}:start_thread", count=1)
    limits = Limits(environment=ENVIRONMENT, confinement=Confinement.CODEC)
    with closing(Child(TARGET, {"module": "json"}, limits=limits, spares=spares)) as child:
        assert child.ready["threads"] == 2
        assert "landlock" not in child.held


def test_only_a_living_spare_with_the_same_environment_is_taken(spares: Spares) -> None:
    spares.start(ENVIRONMENT, prepare="json", count=2)
    dead, living = (process for _, process in spares._waiting)
    dead.popen.kill()
    dead.popen.wait()
    with closing(Child(TARGET, {"module": "json"}, spares=spares)) as child:
        assert child.ready["given"] is None
    limits = Limits(environment=ENVIRONMENT)
    with closing(Child(TARGET, {"module": "json"}, limits=limits, spares=spares)) as child:
        assert child.pid == living.popen.pid
    with pytest.raises(BackendError):
        Child("no.such:target", {}, limits=limits, spares=spares)


def test_what_nobody_takes_is_ended() -> None:
    before, spares = open_descriptors(), Spares()
    spares.start(ENVIRONMENT, prepare="json", count=2)
    processes = [process.popen for _, process in spares._waiting]
    spares.close()
    assert [process.returncode for process in processes] == [-9, -9]
    assert open_descriptors() == before
