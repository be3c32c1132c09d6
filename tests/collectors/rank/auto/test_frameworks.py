from __future__ import annotations

from pulsetrain.collectors.rank.auto.frameworks import Frameworks, named


def test_the_one_that_drives_is_named_first_and_each_once():
    shown = []
    frameworks = Frameworks(shown.append)
    for package in ("accelerate", "accelerate", "transformers"):
        frameworks.note(package)
    assert len(shown) == 2
    assert shown[-1] == f"{named('transformers')}, {named('accelerate')}"


def test_a_package_that_is_installed_has_its_version():
    assert named("torch").startswith("torch 2.")
