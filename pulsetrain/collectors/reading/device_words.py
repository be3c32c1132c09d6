"""The words of a ring by which an agent says which device a rank takes turns on, and what the rank says."""

from __future__ import annotations

from dataclasses import dataclass

from pulsetrain.collectors.layout import (
    W_DEVICE,
    W_DEVICE_FOLLOWS,
    W_DEVICE_LENT,
    W_DEVICE_ORDER,
    W_DEVICE_REFUSED,
    W_DEVICE_TURNS,
    W_DEVICE_WAITED,
)


@dataclass(frozen=True, kw_only=True)
class DeviceUse:
    """How a rank has used a shared device so far. `lent` are turns in which it stood still."""

    turns: int
    waited_ns: int
    lent: int


class DeviceWords:
    """Tells one rank which device it shares. Nothing here waits for the rank."""

    def __init__(self, words: memoryview[int]) -> None:
        self._words = words

    @property
    def device(self) -> int:
        """The device that the rank takes turns on, -1 where it shares none."""
        return self._words[W_DEVICE] - 1

    def order(self, device: int) -> None:
        """From its next wait for other ranks on, the rank takes turns on `device`. -1: on none."""
        self._words[W_DEVICE] = device + 1
        self._words[W_DEVICE_ORDER] += 1

    @property
    def followed(self) -> bool:
        """Whether the rank has obeyed the last order. One that shares no device keeps nothing from others."""
        return (
            not self._words[W_DEVICE]
            or self.refused
            or self._words[W_DEVICE_FOLLOWS] == self._words[W_DEVICE_ORDER]
        )

    @property
    def refused(self) -> bool:
        """Whether the rank cannot take turns: its process groups work on a device, not on the host."""
        return bool(self._words[W_DEVICE_REFUSED])

    def use(self) -> DeviceUse:
        """What the rank did with shared devices."""
        words = self._words
        return DeviceUse(
            turns=words[W_DEVICE_TURNS], waited_ns=words[W_DEVICE_WAITED], lent=words[W_DEVICE_LENT]
        )
