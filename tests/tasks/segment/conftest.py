"""A pipeline over real codec processes, for every module that needs one."""

from collections.abc import Iterator

import pytest

from tests.tasks.segment.serving import Server, served


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with served() as server:
        yield server
