from __future__ import annotations

from pulsetrain.records.reference import page
from pulsetrain.records.schema import RECORDS
from tests.repository import ROOT


def test_the_reference_page_is_fresh():
    docs = ROOT / "docs" / "records.md"
    assert docs.read_text() == page(), "run python -m pulsetrain.records.reference > docs/records.md"


def test_every_field_is_on_the_page():
    for record in RECORDS.values():
        section = page().split(f"## `{record.name}`\n")[1].split("\n## ")[0]
        assert all(f"| `{name}` |" in section for name in record.names)
