"""Compare the layers of two image archives, and print every file that differs.

    python3 deploy/release/layers.py FIRST.tar SECOND.tar

Exit code 1: a layer differs. A difference in times alone is named as such.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import sys
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

Entry = tuple[tuple[Any, ...], int]
"""All properties of a file except its time; its time."""


class Image:
    """The one image of an archive in the layout of OCI, as docker buildx writes it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        manifest = json.loads(self._read("index.json"))
        while "layers" not in manifest:  # an index may name another one
            manifest = json.loads(self._blob(manifest["manifests"][0]["digest"]))
        self.layers: list[str] = [layer["digest"] for layer in manifest["layers"]]

    def files(self, digest: str) -> dict[str, Entry]:
        """Map each path in a layer to its kind, mode, owner, content and time."""
        with tarfile.open(fileobj=io.BytesIO(self._blob(digest))) as layer:
            return dict(self._entries(layer))

    def _entries(self, layer: tarfile.TarFile) -> Iterator[tuple[str, Entry]]:
        for member in layer:
            content = layer.extractfile(member) if member.isreg() else None
            digest = hashlib.sha256(content.read()).hexdigest() if content else member.linkname
            kind = (member.type, member.mode, member.uid, member.gid, digest)
            yield member.name, (kind, int(member.mtime))

    def _blob(self, digest: str) -> bytes:
        return self._read("blobs/" + digest.replace(":", "/"))

    def _read(self, name: str) -> bytes:
        with tarfile.open(self._path) as archive:
            file = archive.extractfile(name)
            assert file is not None, name  # noqa: S101  # the layout has plain files
            return file.read()


def differences(first: Image, second: Image) -> list[str]:
    """Return a line for each layer that differs and for each file in it that does."""
    lines = []
    if len(first.layers) != len(second.layers):
        lines.append(f"{len(first.layers)} layers, and {len(second.layers)}")
    for number, (one, two) in enumerate(zip(first.layers, second.layers, strict=False), 1):
        if one == two:
            continue
        lines.append(f"layer {number}: {one} is not {two}")
        left, right = first.files(one), second.files(two)
        for path in sorted(left.keys() | right.keys()):
            if path not in right or path not in left:
                lines.append(f"  {path}: only in the {'first' if path in left else 'second'}")
            elif left[path][0] != right[path][0]:
                lines.append(f"  {path}: differs")
            elif left[path][1] != right[path][1]:
                lines.append(f"  {path}: differs in its time alone")
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("first", type=Path)
    parser.add_argument("second", type=Path)
    args = parser.parse_args(arguments)
    first = Image(args.first)
    if lines := differences(first, Image(args.second)):
        print("\n".join(lines))
        return 1
    print(f"the same {len(first.layers)} layers")
    return 0


if __name__ == "__main__":
    sys.exit(main())
