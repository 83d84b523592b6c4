"""Name the installed packages that none of the named ones needs, one on each line."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, distribution, distributions

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def needed(roots: list[str]) -> set[str]:
    """Installed distributions reachable from `roots` (`name` or `name[extra]`), by their markers.

    Raises PackageNotFoundError when a root is not installed; a dependency that is not installed
    is one whose marker another platform meets.
    """
    names: set[str] = set()
    seen: set[tuple[str, frozenset[str]]] = set()
    pending = [Requirement(root) for root in roots]
    for requirement in pending:
        distribution(requirement.name)
    while pending:
        requirement = pending.pop()
        name, extras = canonicalize_name(requirement.name), frozenset(requirement.extras)
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        try:
            declared = distribution(name).requires or []
        except PackageNotFoundError:
            continue
        names.add(name)
        for line in declared:
            child = Requirement(line)
            if child.marker is None or any(
                child.marker.evaluate({"extra": extra}) for extra in extras | {""}
            ):
                pending.append(child)
    return names


def main(roots: list[str]) -> int:
    if not roots:
        print("usage: keep.py PACKAGE…", file=sys.stderr)
        return 2
    keep = needed(roots)
    installed = {canonicalize_name(item.metadata["Name"]) for item in distributions()}
    print("\n".join(sorted(installed - keep)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
