"""`pip install pulsetrain` alone, without the hub's packages, runs ranks and agents."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
import tomllib

import pytest

from pulsetrain.cli.extras import EXTRAS_OF_MODULE
from pulsetrain.records.batch import decode
from pulsetrain.stream.spool import segment
from tests.protocol.fake_hub import fake_hub
from tests.repository import ROOT

BLOCK = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"blocked: {name}", name=name)

sys.meta_path.insert(0, Blocker())
"""
BLOCKED = [module for module, extras in EXTRAS_OF_MODULE.items() if {"hub", "kafka"} & {*extras}]


def without_the_hub(code, *args):
    """Run `code` in a process that can import none of the hub's packages."""
    script = f"BLOCKED = {BLOCKED!r}\n{BLOCK}\n{textwrap.dedent(code)}"
    return subprocess.run(
        [sys.executable, "-c", script, *args], capture_output=True, text=True, timeout=60, cwd=ROOT
    )


def passed(result):
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_no_blocked_package_belongs_to_the_base():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    base = {re.split(r"[\[<>=~! ]", requirement)[0] for requirement in project["dependencies"]}
    assert len(base) <= 12
    assert not base & {module.replace("_", "-") for module in BLOCKED}


@pytest.mark.integration
def test_the_packages_of_rank_and_agent_import():
    passed(
        without_the_hub("""
        import importlib, pkgutil
        import pulsetrain
        from pulsetrain import Checkpointer, init

        folders = "agent checkpoint cli collectors core diagnostics faults stream.spool"
        for folder in folders.split():
            package = importlib.import_module(f"pulsetrain.{folder}")
            for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
                if not module.name.endswith("__main__"):
                    importlib.import_module(module.name)
        """)
    )


@pytest.mark.integration
def test_an_agents_batch_reaches_a_hub(tmp_path):
    with fake_hub((200, {"results": [{"stored": 2}, {"stored": 30}]})) as hub:
        result = without_the_hub(
            """
            import time
            from pathlib import Path
            from pulsetrain.collectors.machine.host import HostSampler
            from pulsetrain.collectors.rank.handle import Handle
            from pulsetrain.collectors.rank.ring import RingWriter, create_ring
            from pulsetrain.collectors.reading.drain import Drain
            from pulsetrain.collectors.reading.ring_reader import RingReader
            from pulsetrain.records.columns import Columns
            from pulsetrain.stream.spool.queue import Spool
            from pulsetrain.stream.spool.shipper import Shipper
            from pulsetrain.stream.spool.transport import HttpTransport

            ring = create_ring(1024)
            reader, handle = RingReader(ring), Handle(RingWriter(ring))
            for _ in range(2):
                with handle.phase("forward"):
                    pass
            who = dict(job="j", attempt=0, node="n", rank=3, local_rank=3, address="")
            spool = Spool(Path(sys.argv[2]))
            for batch in Drain(reader, **who).batches(time.time_ns()):
                assert spool.append(batch)
            assert spool.append(HostSampler(node="n").sample(time.time_ns()))
            shipper = Shipper(spool, HttpTransport(sys.argv[1], "token"))
            shipper.start()
            shipper.stop(drain_s=10)
            print(spool.backlog)
            """,
            hub.url,
            str(tmp_path / "spool"),
        )
    assert passed(result) == "0\n"
    entries = [
        asked.body[place.offset : place.end]
        for asked in hub.asked
        for place in segment.scan(asked.body).positions
    ]
    batches = [decode(entry) for entry in entries]
    assert [batch.record for batch in batches] == ["spans", "metrics"]
    assert batches[0].table["phase"].to_pylist() == ["forward", "forward"]
    assert batches[1].rows > 10


@pytest.mark.integration
def test_importing_costs_a_training_script_little():
    code = """
        import time
        import torch
        before = time.perf_counter()
        import pulsetrain
        pulsetrain.init
        print(time.perf_counter() - before)
    """
    took_s = min(float(passed(without_the_hub(code))) for _ in range(3))
    assert took_s < 0.06
