"""Opening the parts of a composed model for a command."""

from pathlib import Path

import pytest

from paddlepool.cli.composed import opened_parts
from paddlepool.contracts.errors import ConfigError
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
