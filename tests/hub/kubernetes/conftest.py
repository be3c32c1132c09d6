import pytest

from pulsetrain.hub.kubernetes.api import KubernetesApi
from pulsetrain.protocol.kubernetes_access import ApiAccess
from tests.hub.kubernetes.emulator import Emulator
from tests.hub.kubernetes.models import check
from tests.hub.kubernetes.server import ApiServer


@pytest.fixture
def server():
    with ApiServer(Emulator(check=check)) as server:
        yield server


@pytest.fixture
def cluster(server):
    """The objects of the cluster, each checked against its model when it is stored."""
    return server.emulator


@pytest.fixture
def slept():
    """For how long the client slept between its tries."""
    return []


@pytest.fixture
def api(server, slept):
    access = ApiAccess(url=server.url, namespace="train")
    api = KubernetesApi(access, sleep=slept.append)
    yield api
    api.close()
