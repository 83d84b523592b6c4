"""The bill of materials: valid, and nothing that the image carries is missing."""

import hashlib
import json
import re
from importlib.metadata import distributions
from typing import Any

import pytest
from packaging.utils import canonicalize_name

from tests.deploy.conftest import Script, in_their_environment, load_script
from tests.ran import ROOT

OWN = {"paddlepool", "paddlepool-client"}


@pytest.fixture(
    scope="module", params=["components", pytest.param("file", marks=pytest.mark.nightly)]
)
def bill(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """The components alone, without the licences of packages, which take half a minute to read; or
    the whole file, which is written only where it is valid by CycloneDX's own schema."""
    if request.param == "components":
        installed = [
            {
                "type": "library",
                "name": package.name,
                "version": package.version,
                "purl": f"pkg:pypi/{package.name}",
            }
            for package in distributions()
            # Neither what the file is about, nor what setuptools carries and adds to the path.
            if package.name != "paddlepool" and "_vendor" not in str(package.locate_file(""))
        ]
        return {"components": load_script("deploy/sbom.py").components(installed)}
    output = tmp_path_factory.mktemp("sbom") / "sbom.json"
    in_their_environment(ROOT / "deploy" / "sbom.py", "--output", output)
    document: dict[str, Any] = json.loads(output.read_text("utf-8"))
    return document


def packages(bill: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {
        canonicalize_name(component["name"]): component
        for component in bill["components"]
        if component.get("purl", "").startswith("pkg:pypi/")
    }


def test_every_locked_package_of_the_image_is_in_it(bill: dict[str, Any], script: Script) -> None:
    """With a licence and the hashes of the lock; tools that the image leaves out are not."""
    needed = script("deploy/container/keep.py").needed
    [roots] = re.findall(r"keep\.py '(paddlepool\S+)'", (ROOT / "Dockerfile").read_text("utf-8"))
    carried = needed([roots, "paddlepool-client"]) - {"paddlepool"}
    listed = packages(bill)
    assert set(listed) == carried
    lock = (ROOT / "requirements.lock").read_text("utf-8")
    for name, package in listed.items():
        if "dependencies" in bill:
            assert package["licenses"], name
        if name in OWN:
            continue
        [files] = package["externalReferences"]
        entry = lock[lock.index(f"\n{name}==") :] if f"\n{name}==" in lock else lock
        assert files["hashes"], name
        assert all(digest["content"] in entry for digest in files["hashes"]), name
        assert f"{name}=={package['version']}" in lock


def test_every_file_of_the_models_is_in_it(bill: dict[str, Any]) -> None:
    """With its own hash and the licence of the weights."""
    models = [part for part in bill["components"] if part["type"] == "machine-learning-model"]
    files = {file["name"]: file for model in models for file in model["components"]}
    paths = list(ROOT.glob("model_repo/*/[0-9]*/*"))
    assert paths
    for path in paths:
        [entry] = files[str(path.relative_to(ROOT / "model_repo"))]["hashes"]
        assert entry["content"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert all(model["licenses"] for model in models)


def test_other_projects_scripts_and_the_base_are_in_it(bill: dict[str, Any]) -> None:
    """Whatever lies packed beside the pages has a component; so has what Debian gives."""
    names = {part["name"] for part in bill["components"]}
    assert {"python", "libgomp1", "swagger-ui", "uplot"} <= names
    carried = {file["name"] for part in bill["components"] for file in part.get("components", ())}
    packed = {str(path.relative_to(ROOT)) for path in ROOT.glob("app/paddlepool/web/**/*.gz")}
    assert set() < packed <= carried


def test_it_says_nothing_of_where_it_was_made(bill: dict[str, Any]) -> None:
    """No path of a machine."""
    assert str(ROOT) not in json.dumps(bill)
    assert "file://" not in json.dumps(bill)
