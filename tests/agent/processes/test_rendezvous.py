"""The store of an attempt."""

from datetime import timedelta

from torch.distributed import TCPStore

from pulsetrain.agent.processes import rendezvous


def test_each_store_has_a_port_of_its_own_and_lives_as_long_as_its_service():
    services = [rendezvous.host(timeout_s=5.0) for _ in range(2)]
    ports = [next(service)["port"] for service in services]
    assert ports[0] != ports[1]
    for port in ports:
        client = TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=5))
        client.set("key", str(port))
        assert client.get("key") == str(port).encode()
    for service in services:
        service.close()
