"""A process may have as many open files as the system allows."""

import resource

from pulsetrain.core.open_files import allow_many_open_files

FILES = resource.RLIMIT_NOFILE


def test_the_limit_that_a_process_may_raise_is_raised_to_the_one_that_it_may_not(monkeypatch):
    asked = []
    monkeypatch.setattr(resource, "getrlimit", {FILES: (64, 512)}.__getitem__)
    monkeypatch.setattr(resource, "setrlimit", lambda *given: asked.append(given))
    assert allow_many_open_files() == 512
    assert asked == [(FILES, (512, 512))]


def test_a_system_that_refuses_is_left_as_it_is(monkeypatch):
    def refuse(*_):
        raise ValueError("not allowed")

    monkeypatch.setattr(resource, "getrlimit", {FILES: (64, 512)}.__getitem__)
    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert allow_many_open_files() == 64
