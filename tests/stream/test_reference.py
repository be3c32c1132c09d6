from __future__ import annotations

from pathlib import Path

from pulsetrain.stream.reference import page
from pulsetrain.stream.schema import RECORDS


def test_the_reference_page_is_fresh():
    docs = Path(__file__).parents[2] / "docs" / "records.md"
    assert docs.read_text() == page(), "run python -m pulsetrain.stream.reference > docs/records.md"


def test_every_field_is_on_the_page():
    for record in RECORDS.values():
        section = page().split(f"## `{record.name}`\n")[1].split("\n## ")[0]
        assert all(f"| `{name}` |" in section for name in record.names)
