"""What a process forked by the zygote does: become a rank and run the user's script, or run one function."""

from __future__ import annotations

import atexit
import ctypes
import errno
import faulthandler
import importlib
import inspect
import io
import json
import os
import runpy
import signal
import sys
import threading
import traceback
from pathlib import Path
from typing import Any, NoReturn

_PR_SET_NAME = 15


def live(request: dict[str, Any], fds: list[int]) -> NoReturn:
    """The rest of this process: a rank (`op` "spawn") or a worker (`op` "call")."""
    code = 1
    try:
        code = _worker(request, fds[0]) if request["op"] == "call" else _rank(request, fds)
    finally:
        _end(code)


def _end(code: int) -> NoReturn:
    """End as a forked process of multiprocessing does: join threads, run exit handlers, flush, no teardown.

    Skipping the interpreter's teardown keeps native libraries' complaints out of the last lines of stderr.
    """
    try:
        threading._shutdown()  # type: ignore[attr-defined]  # the only way to wait as an interpreter's end does
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _rank(request: dict[str, Any], fds: list[int]) -> int:
    """Set up the rank's surroundings and run its script; its exit code."""
    _open_output(fds[0], fds[1])
    for name, fd in zip(request["fd_names"], fds[2:], strict=True):
        os.set_inheritable(fd, True)
        os.environ[name] = str(fd)
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    _name(f"rank {request['env'].get('RANK', '?')}")
    mode, argv = request["mode"], request["argv"]
    if mode == "exec":
        return _exec(argv)
    sys.argv = list(argv)
    faulthandler.enable()
    _reseed()
    _install_collectors()
    return _run(mode, argv[0])


class _Lossy(io.FileIO):
    """A log file. What a full disk does not take is lost; it is no reason for a rank to fail."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                return len(data)
            raise


def _open_output(stdout: int, stderr: int) -> None:
    """Unbuffered, as ``python -u`` under torchrun: the last line before a crash is in the file."""
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)
    os.close(stdout)
    os.close(stderr)
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(
            _Lossy(fd, "w", closefd=False),  # raw, as -u has it
            encoding="utf-8",
            errors="backslashreplace",
            write_through=True,
        )
        for fd in (1, 2)
    )


def _exec(argv: list[str]) -> int:
    try:
        os.execvp(argv[0], argv)
    except OSError as error:
        sys.stderr.write(f"{argv[0]}: {error.strerror}\n")
    return 127


def _reseed() -> None:
    """Forked twins share numpy's global generator; a fresh interpreter would not."""
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()


def _install_collectors() -> None:
    try:
        from pulsetrain.collectors.rank import bootstrap

        bootstrap.install()
    except Exception:  # noqa: BLE001 - a rank trains unwatched rather than not at all
        traceback.print_exc()


def _run(mode: str, target: str) -> int:
    """Run the script or module as ``__main__`` and turn how it ended into an exit code, as python does."""
    try:
        if mode == "module":
            sys.path.insert(0, os.getcwd())
            runpy.run_module(target, run_name="__main__", alter_sys=True)
        else:
            sys.path.insert(0, str(Path(target).resolve().parent))
            runpy.run_path(target, run_name="__main__")
    except SystemExit as end:
        return _status(end.code)
    except BaseException as error:  # noqa: BLE001 - printed as the interpreter would
        sys.excepthook(type(error), error.with_traceback(_user_part(error)), error.__traceback__)
        return 1
    return 0


def _status(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    sys.stderr.write(f"{code}\n")
    return 1


def _user_part(error: BaseException) -> Any:
    """The traceback from the script's first frame on; whole where none of it is the script's."""
    ours = (__file__, runpy.__file__, "<frozen runpy>")
    step = error.__traceback__
    while step is not None and step.tb_frame.f_code.co_filename in ours:
        step = step.tb_next
    return step or error.__traceback__


def _worker(request: dict[str, Any], result: int) -> int:
    """Run ``module:function`` and write its JSON result. A generator is a service: its first value is the
    result, and it stays suspended while this process lives."""
    _name(request["target"].rpartition(":")[2])
    service = None
    try:
        module, _, name = request["target"].partition(":")
        value = getattr(importlib.import_module(module), name)(**request["kwargs"])
        if inspect.isgenerator(value):
            service, value = value, next(value)
        answer = {"value": value}
    except Exception as error:  # noqa: BLE001 - the caller gets it as an error
        answer = {"error": f"{type(error).__name__}: {' '.join(str(error).split())}"}
    with os.fdopen(result, "w") as stream:
        stream.write(json.dumps(answer))
    while service is not None:
        signal.pause()
    return 0


def _name(name: str) -> None:
    """The name that ps and top show."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)
