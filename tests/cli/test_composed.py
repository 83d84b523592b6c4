"""Opening the parts of a composed model for a command."""

from pathlib import Path

import pytest

from paddlepool.cli.composed import opened_parts, seal_composed
from paddlepool.contracts.errors import ConfigError, ExportError
from paddlepool.models.repository.config import ModelConfig
from paddlepool.models.repository.layout import ComposedFiles, ModelRepository
from paddlepool.models.repository.manifest import ComposedManifest


async def test_a_wrong_setting_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PADDLEPOOL_JPEG_MAX_SCANS", "many")
    files = ComposedFiles(
        name="pages",
        version=1,
        directory=tmp_path,
        config=ModelConfig(pipeline="ocr", parts={"detect": "d"}),
        manifest=ComposedManifest(files={}, weights={}, built_with={}, sample="s", answer="a"),
    )
    with pytest.raises(ConfigError, match="PADDLEPOOL_JPEG_MAX_SCANS"):
        async with opened_parts(ModelRepository(tmp_path), files):
            pass


@pytest.mark.parametrize("name", ["next", "01", "0"])
def test_only_a_version_is_sealed(tmp_path: Path, name: str) -> None:
    (tmp_path / "pages" / name).mkdir(parents=True)
    (tmp_path / "pages" / name / "sample.png").touch()
    with pytest.raises(ExportError, match=f"pages/{name} must be MODEL/VERSION"):
        seal_composed(tmp_path / "pages" / name, source="", licence="")
