"""The document of a page names the code that the page will need."""

from __future__ import annotations

import re

import pytest

from pulsetrain.dashboard import preload

DOCUMENT = b'<html><head><script type="module" src="./static/js/index.1.js"></script></head></html>'


@pytest.fixture
def scripts(tmp_path):
    """Charts import `shared`, which imports `deep`, which imports `shared`. Everything imports the index."""
    for name, text in {
        "EChartsChart.a.js": 'import{t as e}from"./index.1.js";import"./shared.b.js";',
        "shared.b.js": "import{x}from`./deep.c.js`;",
        "deep.c.js": 'import"./shared.b.js";',
        "Html.d.js": 'import"./index.1.js";',
        "TextInput.e.js": "",
        "Unwanted.f.js": "",
    }.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def named(document):
    return re.findall(r'modulepreload" crossorigin href="./static/js/([\w.]+)"', document.decode())


@pytest.mark.parametrize("path", ["/", "/heatmap", "/node"])
def test_a_page_with_a_chart_names_all_that_a_chart_imports_once(scripts, path):
    found = named(preload.with_scripts(DOCUMENT, path, scripts=scripts))
    assert sorted(found) == ["EChartsChart.a.js", "Html.d.js", "TextInput.e.js", "deep.c.js", "shared.b.js"]


def test_a_page_without_a_chart_does_not_load_one(scripts):
    assert named(preload.with_scripts(DOCUMENT, "/alerts", scripts=scripts)) == ["Html.d.js"]


def test_a_streamlit_without_these_files_leaves_the_document_as_it_is(tmp_path):
    assert preload.with_scripts(DOCUMENT, "/heatmap", scripts=tmp_path) == DOCUMENT


def test_the_installed_streamlit_has_what_is_named():
    for kind in ("Html", "ButtonGroup", "TextInput", "Selectbox", "EChartsChart"):
        assert preload.needed(preload._SCRIPTS, kind)
