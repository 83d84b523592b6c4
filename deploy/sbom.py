"""Write the contents of the server's image, with licences and hashes, as CycloneDX JSON.

    .venv-deploy/bin/python deploy/sbom.py [--output sbom.cdx.json]

Python packages are those that the Dockerfile keeps, as installed in .venv, each with the hashes
that the lock allows; beside them the scripts of other projects that the pages carry, every file of
model_repo/, and by name alone what comes from Debian and the base image, whose versions their own
package database has. Exit code 1 where the document would not be valid.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PYTHON = ROOT / ".venv" / "bin" / "python"
STATIC = ROOT / "app" / "paddlepool" / "web"
VENDORED = (
    ("swagger-ui", "Apache-2.0", "swagger-ui*", r'PACKAGE_VERSION:"([\d.]+)"'),
    ("uplot", "MIT", "comparison/uplot*", r"uPlot \(v([\d.]+)\)"),
)
"""Name, licence, files below STATIC, and the file that contains the version."""
LICENCES = {"protobuf": "BSD-3-Clause"}
"""Licences, from the file LICENSE, of packages whose metadata names none that can be read."""

Component = dict[str, Any]


def main() -> int:
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--output", type=Path, default=ROOT / "sbom.cdx.json")
    args = parser.parse_args()
    document = bill()
    text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    if fault := JsonStrictValidator(SchemaVersion.V1_6).validate_str(text):
        print(f"not CycloneDX: {str(fault.data)[:500]}", file=sys.stderr)
        return 1
    args.output.write_text(text, "utf-8")
    unlicensed = [part["name"] for part in document["components"] if not part.get("licenses")]
    print(
        f"{len(document['components'])} components in {args.output.name}; "
        f"licence not known here: {', '.join(unlicensed)}"
    )
    return 0


def bill() -> Component:
    """Build the document: the packages of .venv that are in the image, and its other contents."""
    document = json.loads(
        _output(
            str(Path(sys.executable).parent / "cyclonedx-py"),
            *("environment", str(PYTHON), "--pyproject", "pyproject.toml"),
            *("--output-reproducible", "--sv", "1.6"),
        )
    )
    installed = {component["bom-ref"] for component in document["components"]}
    document["components"] = components(document["components"])
    references = {component["bom-ref"] for component in document["components"]} & installed
    references.add("root-component")
    document["dependencies"] = [
        {
            "ref": dependency["ref"],
            "dependsOn": [ref for ref in dependency.get("dependsOn", ()) if ref in references],
        }
        for dependency in document["dependencies"]
        if dependency["ref"] in references
    ]
    return dict(document)


def components(installed: Sequence[Component]) -> list[Component]:
    """Components of the image: its part of the installed packages, and everything else."""
    dockerfile = (ROOT / "Dockerfile").read_text("utf-8")
    return [
        *_packages(installed, dockerfile),
        *_vendored(),
        *_models(ROOT / "model_repo"),
        *_base(dockerfile),
    ]


def _output(*command: str) -> str:
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def _packages(installed: Sequence[Component], dockerfile: str) -> Iterator[Component]:
    """Installed packages that the Dockerfile keeps, with the hashes of the lock."""
    roots = re.search(r"keep\.py (.+?) >", dockerfile)
    if roots is None:
        raise ValueError("the Dockerfile says no more what the image keeps")
    unneeded = set(_output(str(PYTHON), "deploy/container/keep.py", *shlex.split(roots[1])).split())
    hashes = locked_hashes(ROOT / "requirements.lock")
    seen = set()
    for component in installed:
        name = canonical(component["name"])
        if name in unneeded or name in seen:
            continue
        seen.add(name)
        component.setdefault("purl", f"pkg:pypi/{name}@{component['version']}")
        if name in LICENCES:
            component.setdefault("licenses", [{"license": {"id": LICENCES[name]}}])
        # Nothing but the package itself: where a checkout lies is nobody's business.
        component["externalReferences"] = []
        if name in hashes:
            component["externalReferences"] = [
                {
                    "type": "distribution",
                    "url": f"https://pypi.org/project/{name}/{component['version']}/#files",
                    "comment": "one of these files, by the lock",
                    "hashes": [{"alg": "SHA-256", "content": digest} for digest in hashes[name]],
                }
            ]
        yield component


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def locked_hashes(lock: Path) -> dict[str, list[str]]:
    """SHA-256 of every file that a lock allows, by package."""
    hashes: dict[str, list[str]] = {}
    for entry in re.split(r"^(?=[a-z])", lock.read_text("utf-8"), flags=re.MULTILINE):
        if match := re.match(r"[\w.-]+", entry):
            hashes[canonical(match[0])] = re.findall(r"sha256:([0-9a-f]{64})", entry)
    return hashes


def _file(path: Path, below: Path) -> Component:
    data = path.read_bytes()
    return {
        "type": "file",
        "name": str(path.relative_to(below)),
        "bom-ref": f"file:{path.relative_to(ROOT)}",
        "hashes": [{"alg": "SHA-256", "content": hashlib.sha256(data).hexdigest()}],
    }


def _vendored() -> Iterator[Component]:
    for name, licence, pattern, version in VENDORED:
        files = sorted(STATIC.glob(pattern))
        scripts = [gzip.decompress(file.read_bytes()) for file in files if ".js.gz" in file.name]
        match = re.search(version.encode(), b"".join(scripts))
        if match is None:
            raise ValueError(f"{name} says no version")
        number = match[1].decode()
        yield {
            "type": "library",
            "name": name,
            "version": number,
            "purl": f"pkg:npm/{name}@{number}",
            "bom-ref": f"{name}@{number}",
            "licenses": [{"license": {"id": licence}}],
            "components": [_file(file, ROOT) for file in files],
        }


def _models(repository: Path) -> Iterator[Component]:
    """Each published version, with every file of it."""
    for manifest in sorted(repository.glob("*/[0-9]*/manifest.json")):
        directory = manifest.parent
        weights = json.loads(manifest.read_text("utf-8"))["weights"]
        yield {
            "type": "machine-learning-model",
            "name": directory.parent.name,
            "version": directory.name,
            "bom-ref": f"model:{directory.relative_to(repository)}",
            "description": f"{weights['origin']}: {weights.get('source', 'no source is named')}",
            "licenses": [{"license": {"id": weights["licence"]}}],
            "components": [_file(file, repository) for file in sorted(directory.iterdir())],
        }


def _base(dockerfile: str) -> Iterator[Component]:
    base = re.search(r"^ARG BASE_IMAGE=(\S+)$", dockerfile, re.MULTILINE)
    served = dockerfile[dockerfile.index("AS serve\n") :].replace("\\\n", " ")
    installs = re.findall(r"apt-get install((?: +[^\s&]+)+)", served)
    if base is None or not installs:
        raise ValueError("the Dockerfile says no more what it is built on")
    image, _, tag = base[1].partition(":")
    yield {
        "type": "container",
        "name": image,
        "version": tag,
        "purl": f"pkg:docker/{image}@{tag}",
        "bom-ref": f"image:{base[1]}",
    }
    for name in [word for line in installs for word in line.split() if word[0] != "-"]:
        yield {
            "type": "library",
            "name": name,
            "purl": f"pkg:deb/debian/{name}",
            "bom-ref": f"deb:{name}",
        }


if __name__ == "__main__":
    sys.exit(main())
