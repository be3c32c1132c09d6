"""Settings of property tests, the order of the tests, and what the garbage collector looks at."""

import atexit
import gc
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes only tells how busy the machine is. The cases that matter stand in the tests, as
# examples or tests of their own. `--hypothesis-profile thorough` searches for what nobody thought of.
settings.register_profile(
    "unit", max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("thorough", settings.get_profile("unit"), max_examples=1000)
settings.load_profile("unit")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """The million objects of modules stay. Looking at them again and again took a tenth of the time."""
    gc.disable()
    atexit.register(gc.unfreeze)  # some libraries complain of what is left at the end
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests start first, so that no worker is left with a long one at the end."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)
