"""Call a function once a module has been imported, now or later, whoever imports it.

Frameworks are hooked this way: importing one only to hook it would cost the script seconds.
"""

from __future__ import annotations

import importlib.abc
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from threading import get_ident
from types import ModuleType

OnImport = Callable[[ModuleType], None]


class ImportWatch(importlib.abc.MetaPathFinder):
    """A finder at the head of `sys.meta_path`. It finds nothing itself, and asks the others in their order.

    What a function raises goes to `fault`, never into the import. A module whose import fails is not
    reported. A second import that succeeds is.
    """

    def __init__(self, fault: Callable[[], None]) -> None:
        self._fault = fault
        self._waiting: dict[str, list[OnImport]] = {}
        self._asking: set[tuple[int, str]] = set()

    def when_imported(self, name: str, function: OnImport) -> None:
        """Call `function(module)` once the module of this full name has run. At once if it has already."""
        module = sys.modules.get(name)
        if module is not None and not _is_initializing(module):
            self._call(function, module)
            return
        self._waiting.setdefault(name, []).append(function)
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a module that is waited for, with our call behind its execution."""
        turn = get_ident(), fullname
        if fullname not in self._waiting or turn in self._asking:
            return None  # asked in turn by another finder that asks all others, as we do
        self._asking.add(turn)
        try:
            return self._find_elsewhere(fullname, path, target)
        finally:
            self._asking.discard(turn)

    def _find_elsewhere(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> ModuleSpec | None:
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            spec = find(fullname, path, target) if find is not None and finder is not self else None
            if spec is not None:
                self._call_behind(spec)
                return spec  # type: ignore[no-any-return]  # a finder returns a spec or None
        return None

    def _call_behind(self, spec: ModuleSpec) -> None:
        """Shadow the loader's `exec_module` on this one instance. Its class and identity stay as they are.

        An archive has one loader for all of its modules.
        """
        try:
            loader = spec.loader
            execute = loader.exec_module  # type: ignore[union-attr]  # one without it is a fault that we count

            def executed(module: ModuleType) -> None:
                execute(module)
                if module.__name__ == spec.name:
                    self._imported(spec.name)

            loader.exec_module = executed  # type: ignore[method-assign, union-attr]
        except Exception:  # noqa: BLE001 - a loader of another make loads its module unseen
            self._fault()

    def _imported(self, name: str) -> None:
        functions = self._waiting.pop(name, [])
        module = sys.modules.get(name)
        for function in functions:
            if module is not None:
                self._call(function, module)

    def _call(self, function: OnImport, module: ModuleType) -> None:
        try:
            function(module)
        except Exception:  # noqa: BLE001 - the import must succeed whatever our hooks meet
            self._fault()


def _is_initializing(module: ModuleType) -> bool:
    """Return whether the module is being imported right now."""
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))
