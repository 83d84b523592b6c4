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
        for each in layer:
            content = layer.extractfile(each) if each.isreg() else None
            found = hashlib.sha256(content.read()).hexdigest() if content else each.linkname
            kind = (each.type, each.mode, each.uid, each.gid, found)
            yield each.name, (kind, int(each.mtime))

    def _blob(self, digest: str) -> bytes:
        return self._read("blobs/" + digest.replace(":", "/"))

    def _read(self, name: str) -> bytes:
        with tarfile.open(self._path) as archive:
            file = archive.extractfile(name)
            assert file is not None, name  # noqa: S101  # the layout has plain files
            return file.read()


def differences(first: Image, second: Image) -> list[str]:
    """Return a line for each layer that differs and for each file in it that does."""
    found = []
    if len(first.layers) != len(second.layers):
        found.append(f"{len(first.layers)} layers, and {len(second.layers)}")
    for number, (one, two) in enumerate(zip(first.layers, second.layers, strict=False), 1):
        if one == two:
            continue
        found.append(f"layer {number}: {one} is not {two}")
        mine, theirs = first.files(one), second.files(two)
        for path in sorted(mine.keys() | theirs.keys()):
            if path not in theirs or path not in mine:
                found.append(f"  {path}: only in the {'first' if path in mine else 'second'}")
            elif mine[path][0] != theirs[path][0]:
                found.append(f"  {path}: differs")
            elif mine[path][1] != theirs[path][1]:
                found.append(f"  {path}: differs in its time alone")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("first", type=Path)
    parser.add_argument("second", type=Path)
    given = parser.parse_args(arguments)
    first = Image(given.first)
    if found := differences(first, Image(given.second)):
        print("\n".join(found))
        return 1
    print(f"the same {len(first.layers)} layers")
    return 0


if __name__ == "__main__":
    sys.exit(main())
