"""`paddlepool models list | verify | describe`."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from paddlepool.cli import main
from tests.engine.chain import write_composed
from tests.engine.fakes import FakeFactory, write_double
from tests.model_files import add_to_config, write_manifest

Models = Callable[..., list[list[str]]]


@pytest.fixture
def models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Models:
    """Runs `paddlepool models` on a repository, and returns the printed table."""

    def run(*arguments: str, code: int = 0) -> list[list[str]]:
        assert main(["models", *arguments, "--repository", str(tmp_path)]) == code
        lines = capsys.readouterr().out.splitlines()
        # Cells are at least two spaces apart.
        return [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in lines]

    return run


def test_list_shows_every_version_and_its_origin(tmp_path: Path, models: Models) -> None:
    """Newest first, with size, network and the word preview where the weights are one."""
    write_double(tmp_path, 1, 2)
    head, first, second = models("list")
    assert head == ["MODEL", "VERSION", "SERVED", "SIZE", "NETWORK", "WEIGHTS", "PIPELINE"]
    assert [first[:3], second[:3]] == [["double", "2", "yes"], ["double", "1", "no"]]
    assert first[4:] == ["-", "random (preview)", "-"]


def test_list_says_what_serves_where_the_newest_cannot(tmp_path: Path, models: Models) -> None:
    """A manifest that is none: the version before it stands in. A policy names others."""
    double = write_double(tmp_path, 1, 2, 3)
    (double / "3" / "manifest.json").write_text("half a mani", "utf-8")
    assert [row[2] for row in models("list")[1:]] == ["no", "yes", "no"]
    add_to_config(double, '[version_policy]\nkind = "specific"\nversions = [1]\n')
    assert [row[2] for row in models("list")[1:]] == ["no", "no", "yes"]


def test_list_shows_that_a_new_part_must_prove_itself(tmp_path: Path, models: Models) -> None:
    write_double(tmp_path, 1, 2, name="two")
    write_double(tmp_path, name="one")
    write_composed(tmp_path)
    add_to_config(tmp_path / "chain", '[version_policy]\nkind = "canary"\n')
    served = [row[:3] for row in models("list")[1:]]
    assert served[-2:] == [["two", "2", "no"], ["two", "1", "yes"]]


def test_list_shows_what_is_not_sealed(tmp_path: Path, models: Models) -> None:
    """A version directory without a manifest, in its place by number, and what to do about it."""
    double = write_double(tmp_path, 1, 3)
    (double / "2").mkdir()
    (double / ".staging-x").mkdir()
    _, *rows = models("list")
    assert [row[1] for row in rows] == ["3", "2", "1"]
    assert rows[1][2:] == [
        "no", "-", "-", "unsealed: it has no manifest.json: `paddlepool models seal` writes it", "-"
    ]  # fmt: skip


def test_verify_names_the_damage(tmp_path: Path, models: Models) -> None:
    params = write_double(tmp_path, 1, 2) / "2" / "inference.pdiparams"
    params.write_bytes(b"\xff" + params.read_bytes()[1:])
    _, damaged, intact = models("verify", "double", code=1)
    assert damaged[2].startswith("FAILED: double/2: inference.pdiparams has sha256")
    assert intact == ["double", "1", "ok"]


def test_verify_names_batches_of_a_program_that_selects_by_values(
    tmp_path: Path, models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Earlier versions have sealed such programs as if their rows were independent."""
    seen: list[str] = []

    def selecting(program: Path) -> str:
        seen.append(program.name)
        return "nms"

    monkeypatch.setattr("paddlepool.making.export.trial_rows.selecting_operator", selecting)
    config = write_double(tmp_path) / "config.toml"
    text, found = re.subn(r"max_batch_size = \d+", "max_batch_size = 4", config.read_text("utf-8"))
    assert found == 1
    config.write_text(text, "utf-8")
    words = "ok; but max_batch_size is 4 and nms selects by values"
    assert models("verify")[1][2].startswith(words)
    assert seen == ["inference.json"]
    config.write_text(text.replace("max_batch_size = 4", "max_batch_size = 0"), "utf-8")
    assert models("verify")[1][2] == "ok"


def test_a_task_that_does_not_exist_is_a_fault(tmp_path: Path, models: Models) -> None:
    """As for the server, but no predictor is needed."""
    config = write_double(tmp_path) / "config.toml"
    text = config.read_text("utf-8")
    config.write_text(f'pipeline = "clasify"\n{text}', "utf-8")
    reason = "double: pipeline is 'clasify', there are classify, ocr, segment, sentiment"
    assert models("verify", code=1)[1][2].startswith(f"FAILED: {reason}")
    row = models("list")[1]
    assert row[2] == "no"
    assert row[5].startswith(reason)


@pytest.mark.parametrize("action", ["verify", "describe"])
def test_an_unknown_model_is_named_with_the_repository(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], action: str
) -> None:
    write_double(tmp_path)
    assert main(["models", action, "nosuch", "--repository", str(tmp_path)]) == 1
    assert f"no model 'nosuch' is in the repository {tmp_path}" in capsys.readouterr().err


def test_verify_refuses_a_self_test_that_a_server_would_refuse(
    tmp_path: Path, models: Models
) -> None:
    """One that does not fit the manifest, though every byte is as the manifest says."""
    version = write_double(tmp_path) / "1"
    np.savez(version / "selftest.npz", tolerance=np.float64(1))
    write_manifest(version)
    result = models("verify", code=1)[1][2]
    assert result.startswith("FAILED: double/1/selftest.npz: input.x should be float32 [-1, -1]")


def test_describe_shows_tensors_and_groups(tmp_path: Path, models: Models) -> None:
    write_double(tmp_path, 1, 3, count=2)
    table = models("describe", "double")
    assert ["model:", "double, version 3 (of 3, 1)"] in table
    assert ["input", "x", "float32", "any × any"] in table
    assert ["main (default)", "fake", "2", "1", "always", "-"] in table
    assert ["weights' preview:", "yes"] in table


def test_verify_says_which_models_have_no_measure(tmp_path: Path, models: Models) -> None:
    """And goes on with the next."""
    write_double(tmp_path, name="one")
    write_double(tmp_path, name="two")
    lines = [" ".join(row) for row in models("verify", "--quality") if row]
    assert lines[3:] == [f"{name}: no quality measure is defined for it" for name in ("one", "two")]


def test_verify_runs_a_budget_that_asks_for_agreement(
    tmp_path: Path, models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = write_double(tmp_path) / "config.toml"
    always = 'name = "main"\nbudget = { agreement = 1.0 }'
    text = config.read_text("utf-8").replace('name = "main"', always)
    config.write_text(f'pipeline = "sentiment"\n{text}', "utf-8")
    monkeypatch.setattr("paddlepool.cli.models.ProcessBackend", FakeFactory)
    assert models("verify", "--run")[1] == ["double", "1", "ok, self-test passed on main"]
