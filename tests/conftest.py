"""Settings of property tests, the order of the tests, and what the garbage collector looks at."""

import atexit
import gc
import os
import resource
from collections.abc import Generator, Iterator

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


@pytest.fixture
def only_high_descriptors() -> Iterator[None]:
    """Every file that the test opens has a descriptor of 1024 or more, as in the agent of a large node."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 2048)), hard))
    held = [os.open(os.devnull, os.O_RDONLY)]
    while held[-1] < 1023:
        held.append(os.dup(held[0]))
    yield
    for file in held:
        os.close(file)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
