from __future__ import annotations

import pytest

from pulsetrain.stream.store import open_store


@pytest.fixture(scope="session")
def chdb_store(tmp_path_factory):
    """The one chDB folder that this test process may open; tests use job names of their own."""
    store = open_store(f"chdb://{tmp_path_factory.mktemp('chdb')}/store")
    store.migrate()
    yield store
    store.close()
