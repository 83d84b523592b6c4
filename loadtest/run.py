"""`make load`: a load against a server started here, or against one that runs; a report in HTML."""

from __future__ import annotations

import argparse
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
READY_SECONDS, STOP_SECONDS = 120.0, 40.0
EXIT_NO_SERVER = 3


def main(arguments: list[str]) -> int:
    """Returns locust's exit code: 0 within the limits, 1 not; or 3 when there is no server."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog="Everything else goes to locust: see loadtest/locustfile.py."
    )
    parser.add_argument("--host", help="URL of a running server; left out, one is started")
    parser.add_argument("--locust", default=str(ROOT / ".venv-load/bin/locust"))
    parser.add_argument("--report", type=Path, default=ROOT / "runs/load/report.html")
    args, rest = parser.parse_known_args(arguments)
    args.report.parent.mkdir(parents=True, exist_ok=True)
    if args.host:
        return run_locust(args.locust, args.host, args.report, rest)
    try:
        with own_server(args.report.with_name("server.log")) as host:
            return run_locust(args.locust, host, args.report, rest)
    except TimeoutError as error:
        print(error, file=sys.stderr)
        return EXIT_NO_SERVER


def run_locust(locust: str, host: str, report: Path, rest: list[str]) -> int:
    command = [locust, "--locustfile", str(HERE / "locustfile.py"), "--headless", "--only-summary"]
    command += ["--host", host, "--html", str(report), "--stop-timeout", "35", *rest]
    code = subprocess.run(command, check=False).returncode
    print(f"report: {os.path.relpath(report)}")
    return code


@contextmanager
def own_server(log: Path) -> Iterator[str]:
    """A server on a free port of this machine, ready; stopped at the end.

    Raises TimeoutError when it does not become ready.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    environment = {
        **os.environ,
        "PADDLEPOOL_ADMIN_KEY": os.environ.setdefault("LOAD_ADMIN_KEY", secrets.token_hex()),
        "PADDLEPOOL_HOST": "127.0.0.1",
        "PADDLEPOOL_PORT": str(port),
        "PADDLEPOOL_DRAIN_DELAY_SECONDS": "0",
    }
    command = [str(Path(sys.executable).with_name("paddlepool")), "serve"]
    with log.open("w") as output:
        server = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        host = f"http://127.0.0.1:{port}"
        wait_until_ready(server, host, log)
        yield host
    finally:
        server.send_signal(signal.SIGTERM)
        try:
            server.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def wait_until_ready(server: subprocess.Popen[bytes], host: str, log: Path) -> None:
    give_up = time.monotonic() + READY_SECONDS
    while server.poll() is None and time.monotonic() < give_up:
        try:
            with urllib.request.urlopen(f"{host}/v2/health/ready", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.25)
    state = "ended" if server.poll() is not None else f"is not ready after {READY_SECONDS:.0f} s"
    last_lines = "\n".join(log.read_text().splitlines()[-5:])
    raise TimeoutError(f"the server {state}; the end of {log}:\n{last_lines}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
