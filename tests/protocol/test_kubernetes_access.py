import pytest

from pulsetrain.core.errors import UsageError
from pulsetrain.protocol.kubernetes_access import find_api

IN_A_POD = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "6443"}


@pytest.fixture
def account(tmp_path):
    for name, text in (("token", "t1\n"), ("ca.crt", "ca"), ("namespace", "train\n")):
        (tmp_path / name).write_text(text)
    return tmp_path


def test_a_pod_finds_the_api_of_its_cluster(account):
    access = find_api(IN_A_POD, account)
    assert (access.url, access.namespace) == ("https://10.96.0.1:6443", "train")
    assert (access.token(), access.ca_file) == ("t1", account / "ca.crt")
    assert (
        find_api({**IN_A_POD, "KUBERNETES_SERVICE_HOST": "fd00::1"}, account).url == "https://[fd00::1]:6443"
    )


def test_a_token_that_was_rotated_is_read_again(account):
    access = find_api(IN_A_POD, account)
    (account / "token").write_text("t2")
    assert access.token() == "t2"
    (account / "token").unlink()
    with pytest.raises(UsageError, match=r"token: No such file"):
        access.token()


def test_elsewhere_the_environment_says_it_and_a_plain_connection_carries_no_token(account):
    environ = {
        "PULSETRAIN_KUBERNETES_API": "http://127.0.0.1:8001",
        "PULSETRAIN_KUBERNETES_NAMESPACE": "mine",
    }
    access = find_api(environ, account)
    assert (access.url, access.namespace, access.token()) == ("http://127.0.0.1:8001", "mine", "")


@pytest.mark.parametrize("environ", [{}, IN_A_POD, {"PULSETRAIN_KUBERNETES_API": "ftp://x"}])
def test_what_cannot_be_used_is_one_line(environ, tmp_path):
    with pytest.raises(UsageError) as error:
        find_api(environ, tmp_path)
    assert "PULSETRAIN_KUBERNETES_API" in str(error.value)
    assert "\n" not in str(error.value)
