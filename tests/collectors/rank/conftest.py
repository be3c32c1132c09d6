from __future__ import annotations

import pytest

from tests.collectors.rank.watched import Watched


@pytest.fixture
def watched() -> Watched:
    return Watched()
