"""One file over HTTP, resumed where it was cut off and believed only when its digests match."""

import fcntl
import hashlib
import io
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from urllib.request import getproxies

import httpx

from app.contracts.errors import DownloadError
from app.export.weights.release import Release

ATTEMPTS_WITHOUT_PROGRESS = 3
STALL_SECONDS = 15.0
Progress = Callable[[int], None]


def _quiet(received: int, /) -> None:
    pass


def download(
    release: Release,
    target: Path,
    *,
    timeout: float,
    progress: Progress = _quiet,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Fetches `release` to `target`, through `target.part`, which a later call continues.

    `timeout` bounds the whole call in seconds; `progress` receives the bytes on disk so far.
    Raises DownloadError when there is no network, the time is up, the server keeps failing, or
    the file is not the expected one (then nothing of it is kept).
    """
    deadline = clock() + timeout
    with _open_part(target) as part:
        try:
            fcntl.flock(part, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise DownloadError(f"another process is downloading {target.name}") from error
        _resolve(release.url, timeout)
        _fill(part, release, deadline=deadline, progress=progress, clock=clock)
        _verify(part, release)
        os.fsync(part.fileno())
        Path(part.name).replace(target)


def _open_part(target: Path) -> io.BufferedRandom:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        return target.with_name(target.name + ".part").open("a+b")
    except OSError as error:
        raise DownloadError(f"cannot write to {target.parent}: {error.strerror}") from error


def _resolve(url: str, timeout: float) -> None:
    """Looks the host up in a thread that can be left behind: name lookup knows no timeout."""
    address = httpx.URL(url)
    if address.scheme in getproxies():
        return  # the proxy looks names up
    errors: list[OSError] = []

    def look_up() -> None:
        try:
            socket.getaddrinfo(address.host, address.port or address.scheme)
        except OSError as error:
            errors.append(error)

    thread = threading.Thread(target=look_up, daemon=True)
    thread.start()
    thread.join(timeout)
    if thread.is_alive() or errors:
        raise DownloadError(f"no network: the name {address.host} cannot be looked up")


def _fill(
    part: io.BufferedRandom,
    release: Release,
    *,
    deadline: float,
    progress: Progress,
    clock: Callable[[], float],
) -> None:
    failures = 0
    while (size := part.seek(0, os.SEEK_END)) < release.size:
        remaining = deadline - clock()
        if remaining <= 0:
            raise DownloadError(f"time is up at {_share(size, release)}; run again to continue")
        try:
            _attempt(part, release, deadline=deadline, progress=progress, clock=clock)
            fault = "the connection closed early"
        except httpx.ConnectError as error:
            raise DownloadError(
                f"no network: cannot reach {httpx.URL(release.url).host}"
            ) from error
        except httpx.HTTPError as error:
            fault = type(error).__name__
        failures = failures + 1 if part.seek(0, os.SEEK_END) <= size else 0
        if failures >= ATTEMPTS_WITHOUT_PROGRESS:
            raise DownloadError(
                f"{failures} attempts brought nothing ({fault}) at {_share(size, release)}; "
                "run again to continue"
            )


def _attempt(
    part: io.BufferedRandom,
    release: Release,
    *,
    deadline: float,
    progress: Progress,
    clock: Callable[[], float],
) -> None:
    start = part.seek(0, os.SEEK_END)
    headers = {"Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    patience = max(0.001, min(STALL_SECONDS, deadline - clock()))
    with httpx.stream(
        "GET", release.url, headers=headers, timeout=patience, follow_redirects=True
    ) as response:
        if response.status_code not in (200, 206):
            raise DownloadError(f"the server answered {response.status_code}, expected 200 or 206")
        resumed = response.headers.get("content-range", "").startswith(f"bytes {start}-")
        if not (response.status_code == 206 and resumed):
            part.truncate(0)  # the whole file comes again: Range was ignored or answered wrongly
            if response.status_code == 206 and start:
                return
        # Given a chunk size, iter_raw would hold back bytes, and a cut would lose them.
        for chunk in response.iter_raw():
            part.write(chunk)
            part.flush()
            size = part.tell()
            progress(size)
            if size > release.size:
                part.truncate(0)
                raise DownloadError(f"the server sent more than the expected {release.size} bytes")
            if clock() >= deadline:
                return


def _verify(part: io.BufferedRandom, release: Release) -> None:
    part.seek(0)
    sha256 = hashlib.file_digest(part, "sha256").hexdigest()
    part.seek(0)
    md5 = hashlib.file_digest(part, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    if (sha256, md5) != (release.sha256, release.md5):
        part.truncate(0)
        raise DownloadError(f"the file has sha256 {sha256}, expected {release.sha256}; discarded")


def _share(size: int, release: Release) -> str:
    return f"{size / 1e6:.1f} of {release.size / 1e6:.1f} MB"
