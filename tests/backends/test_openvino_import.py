"""Nobody is told that OpenVINO is used."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("openvino")


@pytest.mark.slow
@pytest.mark.parametrize("then", ["", "\nimport nncf"])
def test_nothing_is_reported_and_no_identity_kept(then: str, tmp_path: Path) -> None:
    if then:
        pytest.importorskip("nncf")
    code = (
        "import sys\n"
        "from app.backends.openvino import imported_openvino\n"
        f"imported_openvino(){then}\n"
        "print([name for name in sys.modules if name.startswith('openvino_telemetry.')])"
    )
    environment = {**os.environ, "HOME": str(tmp_path)}
    environment.pop("CI", None)  # where it is set, they report nothing anyway
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout.split() == ["[]"]
    assert not done.stderr
    assert not (tmp_path / "intel").exists()
