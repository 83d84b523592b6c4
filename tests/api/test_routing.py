"""What the endpoints of tasks share: naming a model and a version."""

from __future__ import annotations

import pytest

from app.api.routing import split_model
from app.contracts.errors import InvalidParameter


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, (None, None)),
        ("u2netp", ("u2netp", None)),
        ("u2netp@2", ("u2netp", 2)),
        ("u2netp@007", ("u2netp", 7)),
    ],
)
def test_a_model_may_be_named_with_its_version(
    given: str | None, expected: tuple[str | None, int | None]
) -> None:
    """Without one the registry chooses."""
    assert split_model(given) == expected


@pytest.mark.parametrize("given", ["m@", "m@x", "m@-1", "m@1.0", "m@1@2", "m@²", "m@" + "9" * 40])
def test_a_version_is_a_whole_number(given: str) -> None:
    """Anything else is the client's mistake, not a model that is missing."""
    with pytest.raises(InvalidParameter):
        split_model(given)
