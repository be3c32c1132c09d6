"""Addresses that people give."""

import pytest

from pulsetrain.core.errors import UsageError
from pulsetrain.core.urls import split_url


@pytest.mark.parametrize("host", ["h:port", "h:99999", "[::1:80", "h]"])
@pytest.mark.parametrize("user", ["", "ann:secret@"])
def test_a_host_or_port_that_cannot_be_is_named_without_the_password(user, host):
    with pytest.raises(UsageError) as caught:
        split_url(f"http://{user}{host}/db", "store")
    assert str(caught.value) == f"store 'http://{host}/db': its host or port is not valid"


def test_text_that_has_no_scheme_is_shown_without_a_password_too():
    with pytest.raises(UsageError) as caught:
        split_url("//ann:secret@[h", "store")
    assert "secret" not in str(caught.value)


def test_several_hosts_have_no_port_that_counts():
    assert split_url("etcd://a:1,b:2", "--kv", one_host=False).netloc == "a:1,b:2"
