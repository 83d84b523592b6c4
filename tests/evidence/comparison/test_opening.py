"""What a comparison opens is closed when it is not used; what it asks the machine may be absent."""

from pathlib import Path

import pytest

from app.contracts.errors import BackendError
from app.contracts.ports import PredictorSpec
from app.evidence.comparison.measure import open_groups
from app.models.repository.layout import ModelRepository
from tests.engine.fakes import FakeFactory, FakePredictor, write_double


@pytest.mark.parametrize("error", [BackendError("no room"), KeyboardInterrupt()], ids=str)
def test_a_group_that_cannot_be_opened_whole_is_closed(
    tmp_path: Path, error: BaseException
) -> None:
    """A refusal is a result; Ctrl-C goes on."""
    write_double(tmp_path)
    files = ModelRepository(tmp_path).read("double", 1)
    factory = FakeFactory()

    def open_predictor(spec: PredictorSpec) -> FakePredictor:
        if factory.opened:
            raise error
        return factory(spec)

    try:
        opened = open_groups(
            files,
            [files.config.group("main")],
            open_predictor=open_predictor,  # type: ignore[arg-type]
            selftest=files.selftest(),
            count=lambda _group: 2,
        )
        assert opened.refused == {"main": "no room"}
    except KeyboardInterrupt:
        assert isinstance(error, KeyboardInterrupt)
    assert all(predictor.closed.is_set() for predictor in factory.opened)
    assert len(factory.opened) == 1
