"""`make load`: load a server started here or a running one, and write an HTML report."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from harness import HOST, ROOT, running_server

EXIT_NO_SERVER = 3


def main(arguments: list[str]) -> int:
    """Return locust's exit code: 0 within the limits, 1 beyond them, or 3 without a server."""
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
        with running_server(log_file=args.report.with_name("server.log")) as server:
            host = f"http://{HOST}:{server.port}"
            return run_locust(args.locust, host, args.report, rest)
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return EXIT_NO_SERVER


def run_locust(locust: str, host: str, report: Path, rest: list[str]) -> int:
    command = [locust, "--locustfile", str(ROOT / "loadtest/locustfile.py")]
    command += ["--headless", "--only-summary", "--stop-timeout", "35"]
    command += ["--host", host, "--html", str(report), *rest]
    code = subprocess.run(command, check=False).returncode
    print(f"report: {os.path.relpath(report)}")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
