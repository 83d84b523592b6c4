"""`paddlepool ray up` as a process of its own, with little memory and its own directory."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from collections.abc import Iterator, Mapping

from harness import HOST, ROOT, free_port, is_ready, running_program

PYTHON = ROOT / ".venv-ray" / "bin" / "python"
INGRESSES: Mapping[str, Mapping[str, str]] = {
    "proxy": {},
    "HAProxy": {
        "RAY_SERVE_ENABLE_HA_PROXY": "1",
        "RAY_SERVE_HAPROXY_RETRY_ON": "conn-failure empty-response junk-response 503",
        "RAY_SERVE_HAPROXY_RETRIES": "3",
        "RAY_SERVE_HAPROXY_TUNE_BUFSIZE": "1114112",
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "5",
    },
}
"""What leads to the replicas, and the environment of Ray's processes that chooses it."""

START_SECONDS = 180.0


@contextlib.contextmanager
def ray_up(
    *options: str, environment: Mapping[str, str]
) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """Its port and its process, once its first replica answers; ended with the block.

    Raises RuntimeError, with the end of what it printed, when none does.
    """
    port = free_port()
    command = [PYTHON, "-m", "app.cli", "ray", "up", "--host", HOST, "--port", str(port), *options]
    with (
        tempfile.TemporaryDirectory(prefix="ray") as directory,
        running_program(
            command,
            lambda: is_ready(port),
            environment={"RAY_TMPDIR": directory, **environment},
            timeout=START_SECONDS,
        ) as process,
    ):
        yield port, process
