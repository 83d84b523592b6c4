"""A version of several programs: what its manifest may say, and which one a group gets."""

from pathlib import Path
from typing import Any

import pytest

from paddlepool.contracts.errors import ConfigError, ManifestError
from paddlepool.contracts.resources import has_gpu
from paddlepool.models.repository.config import InstanceGroup
from paddlepool.models.repository.layout import ModelRepository
from paddlepool.models.repository.manifest import read_manifest
from tests.model_files import write_manifest, write_version

INT8: dict[str, Any] = {
    "name": "int8",
    "format": "onnx",
    "program": "int8.onnx",
    "params": None,
    "derivation": {
        "tool": "a test",
        "versions": {"onnx": "1.23"},
        "settings": {"per_channel": True, "opset": 17},
        "float_layers": ["outconv"],
    },
    "calibration": {"data": "pictures", "count": 400, "sha256": "0" * 64},
    "quality": [{"data": "others", "count": 155, "figures": {"IoU": 0.002}}],
}


@pytest.fixture
def version(tmp_path: Path) -> Path:
    """A version with a file beside its program; write_manifest() tells of it."""
    directory = write_version(tmp_path / "model" / "1")
    (directory / "int8.onnx").write_bytes(b"a program")
    return directory


def test_a_manifest_lists_derived_programs(version: Path) -> None:
    write_manifest(version, format=2, programs=[INT8])
    manifest = read_manifest(version)
    [derived] = manifest.programs
    assert derived.derivation.float_layers == ("outconv",)
    assert derived.calibration is not None
    assert derived.calibration.count == 400
    assert derived.quality[0].figures == {"IoU": 0.002}
    found, reference = manifest.find("int8"), manifest.find(None)
    assert found is not None
    assert (found.format, found.program) == ("onnx", "int8.onnx")
    assert reference is not None
    assert (reference.format, reference.program) == ("paddle", "inference.json")
    assert manifest.find("int4") is None


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"format": 1, "programs": [INT8]}, "need format 2"),
        ({"format": 1, "program": "int8.onnx", "params": None}, "need format 2"),
        ({"format": 2, "programs": [INT8, INT8]}, "names of programs repeat"),
        (
            {"format": 2, "programs": [INT8 | {"program": "other.onnx"}]},
            "int8's program file 'other.onnx' is not listed",
        ),
        ({"format": 2, "programs": [INT8 | {"format": "tflite"}]}, "programs.0.format"),
        ({"format": 3}, "format"),
        (
            {"files": {"inference.pdiparams.info": {"bytes": 1, "sha256": "0" * 64}}},
            "inference.pdiparams.info is a pickle",
        ),
    ],
)
def test_contradictions_are_named(version: Path, changes: dict[str, Any], said: str) -> None:
    write_manifest(version, **changes)
    with pytest.raises(ManifestError, match=said):
        read_manifest(version)


def test_a_group_gets_the_program_it_names(version: Path) -> None:
    write_manifest(version, format=2, programs=[INT8])
    files = ModelRepository(version.parents[1]).read("model", 1)
    named = files.spec(InstanceGroup(name="fast", backend="onnxruntime", program="int8"))
    assert (named.program, named.params, named.format) == ("int8.onnx", None, "onnx")
    plain = files.spec(InstanceGroup(name="plain", backend="onnxruntime"))
    assert (plain.program, plain.format, plain.refusal) == ("inference.json", "paddle", "")
    missing = files.spec(InstanceGroup(name="none", backend="onnxruntime", program="int4"))
    assert missing.refusal == "this version has no program 'int4'"


def test_outputs_are_served_under_the_names_of_config_toml(version: Path) -> None:
    """In the metadata, by predictors and in the self-test; the manifest keeps the program's."""
    write_manifest(version)
    (version.parent / "config.toml").write_text('[outputs]\ny = "Doubled.x"\n', "utf-8")
    files = ModelRepository(version.parent.parent).read("model", 1)
    assert [spec.name for spec in files.manifest.outputs] == ["y"]
    group = InstanceGroup(name="onednn", backend="paddle_inference")
    for outputs in (files.outputs, files.info().outputs, files.spec(group).outputs):
        assert [spec.name for spec in outputs] == ["Doubled.x"]
    assert list(files.selftest().outputs) == ["Doubled.x"]


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ('z = "a"', "names the output 'z', the program has y"),
        ('y = "a\\nb"', "outputs.y: String should match pattern"),
        ('y = "a"\nz = "a"', "outputs have the same name"),
    ],
)
def test_wrong_names_of_outputs_are_refused(version: Path, names: str, said: str) -> None:
    write_manifest(version)
    (version.parent / "config.toml").write_text(f"[outputs]\n{names}\n", "utf-8")
    with pytest.raises(ConfigError, match=said):
        ModelRepository(version.parent.parent).read("model", 1)


@pytest.mark.skipif(has_gpu(), reason="NOT TESTED: no GPU to be missing")
def test_a_group_whose_device_is_missing_is_refused(version: Path) -> None:
    """Without a process that finds out."""
    write_manifest(version, format=2, programs=[INT8])
    files = ModelRepository(version.parents[1]).read("model", 1)
    group = InstanceGroup(name="gpu", backend="paddle_inference", options={"device": "gpu"})
    assert "no CUDA device" in files.spec(group).refusal
