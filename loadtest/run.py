"""`make load`: load a server started here or a running one, and write an HTML report."""

import argparse
import os
import subprocess
import sys
from pathlib import Path

from harness import HOST, ROOT, running_server

REPORT = ROOT / "runs/load/report.html"


def main(arguments: list[str]) -> int:
    """Return locust's exit code: 0 within the limits, 1 beyond them."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog="Everything else goes to locust: see loadtest/locustfile.py."
    )
    parser.add_argument("--host", help="URL of a running server; left out, one is started")
    args, rest = parser.parse_known_args(arguments)
    REPORT.parent.mkdir(parents=True, exist_ok=True)
    if args.host:
        return run_locust(args.host, rest)
    with running_server(log_file=REPORT.with_name("server.log")) as server:
        return run_locust(f"http://{HOST}:{server.port}", rest)


def run_locust(host: str, rest: list[str]) -> int:
    command: list[str | Path] = [ROOT / ".venv-load/bin/locust", "--host", host, "--html", REPORT]
    command += ["--locustfile", ROOT / "loadtest/locustfile.py", "--headless", "--only-summary"]
    code = subprocess.run([*command, "--stop-timeout", "35", *rest], check=False)
    print(f"report: {os.path.relpath(REPORT)}")
    return code.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
