"""What a process forked by the zygote does: become a rank and run the user's script, or run one function."""

from __future__ import annotations

import atexit
import builtins
import contextlib
import ctypes
import errno
import faulthandler
import gc
import importlib
import inspect
import io
import json
import os
import runpy
import signal
import stat
import sys
import threading
import traceback
from collections.abc import Sequence
from importlib.machinery import SourceFileLoader, SourcelessFileLoader
from pathlib import Path
from pkgutil import get_importer, read_code  # as runpy tells compiled scripts
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from pulsetrain.agent.processes.zygote_protocol import CallRequest, ForkRequest, SpawnRequest
from pulsetrain.collectors.rank import unshared_store
from pulsetrain.core.process_title import set_process_title, set_short_name

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


def run_forked(request: ForkRequest, files: Sequence[int]) -> NoReturn:
    """The rest of this process: a rank (`op` "spawn") or a worker (`op` "call")."""
    code, frozen = 1, gc.get_freeze_count()
    try:
        code = _run_worker(request, files[0]) if request["op"] == "call" else _run_rank(request, files)
    except BaseException:  # noqa: BLE001 - the process's edge: without a word nobody knows why it ended
        traceback.print_exc(file=sys.__stderr__)
    finally:
        _exit(code, frozen)


def _exit(code: int, frozen: int = 0) -> NoReturn:
    """End as a forked process of multiprocessing does: join threads, run exit handlers, flush.

    The interpreter's teardown is skipped: native libraries would complain in the last lines of stderr. A
    negative `code` ends it by that signal. `frozen`: how many objects the zygote has hidden from the garbage
    collector. Where there are more, the script has hidden its own, and open files among them.
    """
    try:
        threading._shutdown()  # type: ignore[attr-defined]  # the only way to wait as an interpreter's end does
        atexit._run_exitfuncs()
        if gc.get_freeze_count() > frozen:  # else the memory shared with the zygote is left alone
            gc.unfreeze()
        _close_archives()
        _flush_files()
        sys.stdout.flush()
        sys.stderr.flush()
        ctypes.CDLL(None).fflush(None)  # what C printed
    finally:
        if code < 0:
            _end_by(-code)
        os._exit(code if code >= 0 else 128 - code)


def _end_by(signum: int) -> None:
    """Returns only where the signal is blocked."""
    with contextlib.suppress(Exception):
        signal.signal(signum, signal.SIG_DFL)
        os.kill(os.getpid(), signum)


def _close_archives() -> None:
    """Close tables, compressed files, archives and temporary files that the script left open.

    The teardown would: they end with something that is written when they are closed.
    """
    tables = _imported("pyarrow.parquet.ParquetWriter", "h5py.File")  # may write into one of the others
    archives = _imported("gzip.GzipFile", "bz2.BZ2File", "lzma.LZMAFile", "zipfile.ZipFile")
    kinds = (*tables, *archives, *_imported("tempfile._TemporaryFileCloser"))
    order = (tables, io.TextIOWrapper, kinds)
    found = [item for item in gc.get_objects() if issubclass(type(item), (io.TextIOWrapper, *kinds))]
    for item in sorted(found, key=lambda item: [issubclass(type(item), each) for each in order].index(True)):
        with contextlib.suppress(Exception):  # it may be closed, or its disk may be full
            if issubclass(type(item), kinds) or isinstance(item.buffer, kinds):
                item.close()


def _imported(*names: str) -> tuple[type[Any], ...]:
    """Those of the classes that the script has imported."""
    pairs = [name.rpartition(".")[::2] for name in names]
    found = [getattr(sys.modules.get(module), kind, None) for module, kind in pairs]
    return tuple(each for each in found if isinstance(each, type))


def _flush_files() -> None:
    """Write what is left in the buffers of files that the script did not close, as the teardown would.

    Only those on disk: a pipe that nobody reads would hold the process up.
    """
    kinds = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)
    files = [item for item in gc.get_objects() if issubclass(type(item), kinds)]
    for file in sorted(files, key=lambda item: not issubclass(type(item), io.TextIOWrapper)):
        with contextlib.suppress(Exception):  # it may be closed, or its disk may be full
            if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                file.flush()


def _run_rank(request: SpawnRequest, files: Sequence[int]) -> int:
    """Set up the rank's surroundings and run its script; its exit code."""
    _open_output(files[0], files[1])
    for name, fd in zip(request["file_names"], files[2:], strict=True):
        os.set_inheritable(fd, True)
        os.environ[name] = str(fd)
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    _set_names(request["env"])
    unshared_store.leave_agents_store(os.environ)
    mode, argv = request["mode"], request["argv"]
    if mode == "exec":
        return _exec(argv)
    sys.argv = list(argv)
    faulthandler.enable()
    _reseed()
    _install_collectors()
    return _run(mode, argv[0])


def _set_names(env: dict[str, str]) -> None:
    """Name the process for people: its title for `ps`, its short name for `top`."""
    rank = env.get("RANK", "?")
    set_process_title(f"rank {rank} of job {env.get('PULSETRAIN_JOB', '?')}")
    set_short_name(f"rank {rank}")


class LossyFile(io.FileIO):
    """A log file that loses what its disk does not take: a rank must not fail because of it.

    The disk may be full or away, or the file too large. A closed file is the script's own mistake.
    """

    def write(self, data: ReadableBuffer, /) -> int:
        """Write `data`. What the disk refuses counts as written."""
        try:
            return super().write(data)
        except OSError as error:
            if error.errno in (None, errno.EBADF, errno.EAGAIN):
                raise
            return len(memoryview(data).cast("B"))


def _open_output(stdout: int, stderr: int) -> None:
    """Unbuffered, as ``python -u`` under torchrun: the last line before a crash is in the file.

    Scripts that silence `print` for a while go back to ``sys.__stdout__``, so that is the same stream.
    """
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)
    os.close(stdout)
    os.close(stderr)
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(
            LossyFile(fd, "w", closefd=False),  # raw, as -u has it
            encoding="utf-8",
            errors="backslashreplace",
            write_through=True,
        )
        for fd in (1, 2)
    )
    sys.__stdout__, sys.__stderr__ = sys.stdout, sys.stderr  # type: ignore[misc]  # typed as constants


def _exec(argv: list[str]) -> int:
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # by Python alone
        signal.signal(ignored, signal.SIG_DFL)
    try:
        os.execvp(argv[0], argv)
    except OSError as error:
        sys.stderr.write(f"{argv[0]}: {error.strerror}\n")
    return 127


def _reseed() -> None:
    """Give this rank its own random numbers, as a new process has them.

    Forked ranks share the state of the global generators of numpy and torch, in every attempt. On CUDA torch
    begins with one and the same number in all processes.
    """
    if "numpy" in sys.modules:
        import numpy as np

        np.random.seed()
    if "torch" in sys.modules:
        import torch

        torch.default_generator.seed()


def _install_collectors() -> None:
    try:
        from pulsetrain.collectors.rank import bootstrap

        bootstrap.install()
    except Exception:  # noqa: BLE001 - a rank trains unwatched rather than not at all
        traceback.print_exc()


def _run(mode: str, target: str) -> int:
    """Run the script or module as ``__main__``; the exit code that python would give it.

    Minus a signal's number where python would end itself by that signal. ``__main__`` stays until the process
    ends: threads and exit handlers that outlive the script may still pickle its classes.
    """
    main = sys.modules["__main__"] = ModuleType("__main__")
    try:
        if mode == "module":
            _search_first(os.getcwd())
            runpy._run_module_as_main(target)  # type: ignore[attr-defined]  # what `python -m` calls
        elif get_importer(target) is not None:  # a folder or an archive with a `__main__.py`
            sys.path.insert(0, target)
            runpy._run_module_as_main("__main__", False)  # type: ignore[attr-defined]  # and `python folder`
        else:
            _search_first(str(Path(target).resolve().parent))
            _run_file(str(Path(target).absolute()), main)
    except SystemExit as end:
        return exit_code(end.code)
    except BaseException as error:  # noqa: BLE001 - printed as the interpreter would
        return _show(error.with_traceback(script_traceback(error.__traceback__)))
    return 0


def _show(error: BaseException) -> int:
    """Print what the script has raised, by its own hook if it has one. Returns the exit code."""
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except SystemExit as end:
        return exit_code(end.code)
    except BaseException as failed:  # noqa: BLE001 - printed as the interpreter would
        sys.stderr.write("Error in sys.excepthook:\n")
        sys.__excepthook__(type(failed), failed, failed.__traceback__)
        sys.stderr.write("\nOriginal exception was:\n")
        sys.__excepthook__(type(error), error, error.__traceback__)
    return -signal.SIGINT if type(error) is KeyboardInterrupt else 1


def _run_file(path: str, main: ModuleType) -> None:
    """Run a script, or its compiled form, in `main`. A full `path` is valid after a change of the folder."""
    loader: SourceFileLoader | SourcelessFileLoader = SourcelessFileLoader("__main__", path)
    with io.open_code(path) as file:
        code = read_code(file)
    if code is None:
        loader = SourceFileLoader("__main__", path)
        with io.open_code(path) as file:
            code = compile(file.read(), path, "exec", dont_inherit=True)
    main.__dict__.update(__file__=path, __loader__=loader, __builtins__=builtins, __cached__=None)
    exec(code, main.__dict__)


def _search_first(folder: str) -> None:
    """As python does it with the folder of a script, unless it is told not to (`-P`, PYTHONSAFEPATH)."""
    if not sys.flags.safe_path:
        sys.path.insert(0, folder)


def exit_code(status: object) -> int:
    """The exit code for `SystemExit(status)`. A text is written to stderr and gives 1."""
    if status is None:
        return 0
    if isinstance(status, int):
        return status & 0xFF
    sys.stderr.write(f"{status}\n")
    return 1


def script_traceback(trace: TracebackType | None) -> TracebackType | None:
    """The traceback from the script's first frame on; all of it where no frame is the script's."""
    not_the_script = (__file__, runpy.__file__, "<frozen runpy>")
    step = trace
    while step is not None and step.tb_frame.f_code.co_filename in not_the_script:
        step = step.tb_next
    return step or trace


def _run_worker(request: CallRequest, result: int) -> int:
    """Run ``module:function`` and write its JSON result.

    A generator is a service: its first value is the result, and it stays suspended while this process lives.
    """
    module, _, name = request["target"].partition(":")
    set_process_title(f"worker {request['target']}")
    set_short_name(name)
    service = None
    answer: dict[str, object]
    try:
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
