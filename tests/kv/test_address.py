import pytest

from pulsetrain.core.errors import UsageError
from pulsetrain.kv.address import EtcdAddress, parse


def test_several_members_with_and_without_a_port():
    assert parse("etcd://a:4001,b,[::1]:5", {}).endpoints == (
        "http://a:4001",
        "http://b:2379",
        "http://[::1]:5",
    )


def test_certificates_come_with_the_address():
    address = parse("etcds://a?ca=/ca.pem&cert=/me.pem&key=/me.key", {})
    assert address == EtcdAddress(endpoints=("https://a:2379",), ca="/ca.pem", cert="/me.pem", key="/me.key")


def test_user_and_password_from_the_address_or_the_environment_are_never_shown():
    environ = {"PULSETRAIN_ETCD_USER": "hub", "PULSETRAIN_ETCD_PASSWORD": "s3cret"}
    for address in (parse("etcd://a", environ), parse("etcd://hub:s3cret@a", {})):
        assert (address.user, address.password) == ("hub", "s3cret")
        assert "s3cret" not in f"{address} {address!r}"


@pytest.mark.parametrize(
    "url",
    [
        "http://u:s3cret@a",
        "etcd://u:s3cret@",
        "etcd://u:s3cret@a:x",
        "etcd://u:s3cret@[::1:2379",
        "etcd://u:s3cret@a,[::1",
        "etcd://u:s3cret@a/path",
        "etcd://u:s3cret@a?what=1",
        "etcd://u:s3cret@a?ca=/ca.pem",
        "etcds://u:s3cret@a?cert=/me.pem",
    ],
)
def test_what_cannot_be_used_is_refused_without_the_password(url):
    with pytest.raises(UsageError) as error:
        parse(url, {})
    assert "s3cret" not in str(error.value)
