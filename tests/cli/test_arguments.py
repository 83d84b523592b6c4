"""Options that cannot be combined, and impossible values, are refused before anything runs."""

from pathlib import Path

import pytest

from paddlepool.cli import main
from tests.engine.fakes import write_double


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("compare double --requests 0", "--requests must be at least 1"),
        ("compare double --plot a.pdf", "--plot writes .png and .svg"),
        ("compare", "name a MODEL, or --claims"),
        ("compare double --docs d", "--docs belongs to --claims"),
        ("tune double", "--p95 MS or --groups is required"),
        ("tune double --p95 0", "--p95 must be above 0"),
        ("tune double --p95 nan", "--p95 must be above 0"),
        ("tune double --p95 9 --seconds 0", "--seconds must be above 0"),
        ("tune double --p95 9 --yes", "--yes belongs to --groups"),
        ("quantize double --data . --budget 1", "--budget must be between 0 and 1"),
        ("quantize double --data . --samples 0", "--samples must be at least 1"),
        ("quantize double --data absent", "no such folder: absent"),
        ("models verify --limit 3", "--limit belongs to --quality"),
        ("models verify --write-cards", "--write-cards belongs to --quality"),
        ("models verify --group main", "--group belongs to --quality"),
        ("models verify --quality --limit 0", "--limit must be at least 1"),
        ("models verify --quality --limit 3 --write-cards", "--write-cards needs all the data"),
        ("models verify --quality --group main --write-cards", "--write-cards is for the default"),
        ("models verify --quality double", "double: no quality measure is defined for it"),
    ],
)
def test_impossible_arguments_are_refused(
    arguments: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_double(tmp_path)
    command = arguments.split()
    assert main([*command, "--repository", str(tmp_path)]) == 1
    assert (
        capsys.readouterr().err.splitlines()[-1].startswith(f"paddlepool {command[0]}: {message}")
    )
