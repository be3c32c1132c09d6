"""Settings of property tests, and the order of the tests."""

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes only tells how busy the machine is.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests start first, so that no worker is left with a long one at the end."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)
