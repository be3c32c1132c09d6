"""What `pip install pulsetrain` adds to a training environment.

    python benchmarks/footprint.py [--quick]

Builds the wheel and asks four questions. Which packages come with it beside torch's own, and how large are
they, as wheels and installed? What does the import cost a training script, over `import torch`? Does a job of
two ranks, in an environment that holds exactly these packages, report to a hub in another environment? Do the
usual frameworks resolve to the same versions with Pulsetrain as without it? Needs `uv` and a package index.
`--quick` asks the index about one framework only. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypedDict

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
FRAMEWORKS = {
    "torchtitan": ("torchtitan>=0.3",),
    "transformers": ("transformers",),
    "accelerate": ("accelerate",),
    "datasets": ("datasets",),
    "lightning": ("lightning",),
    "mlflow": ("mlflow>=3",),
    "deepspeed": ("deepspeed",),
    "nemo-run": ("nemo-run",),
    "all but nemo-run": (
        "torchtitan>=0.3",
        "transformers",
        "accelerate",
        "datasets",
        "lightning",
        "mlflow>=3",
        "deepspeed",
    ),
}
RECORDS = ("spans", "steps", "metrics", "heartbeats")
SCRIPT = """
import os, time
import torch.distributed as dist
import pulsetrain
assert not any(name in __import__("sys").modules for name in ("pyarrow", "httpx", "starlette"))
run = pulsetrain.init()
dist.init_process_group("gloo")
import torch
for _ in range(20):
    with run.phase("forward"):
        time.sleep(0.01)
    dist.all_reduce(torch.ones(1000))
    run.step(tokens=1)
dist.destroy_process_group()
"""
IMPORT = """
import time, torch
before = time.perf_counter()
import pulsetrain
pulsetrain.init
print(time.perf_counter() - before)
"""


class Framework(TypedDict):
    """`changed` names what resolves to another version with Pulsetrain than without it."""

    name: str
    packages: int
    changed: list[str]


def uv(*arguments: str | Path, text: str | None = None) -> str:
    """Run uv. Raises `CalledProcessError`."""
    command = [str(Path(sys.executable).with_name("uv")), *map(str, arguments)]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


def build_wheel(folder: Path) -> Path:
    """The wheel of this repository."""
    uv("build", "--wheel", "--quiet", "--out-dir", folder, ROOT)
    return next(folder.glob("pulsetrain-*.whl"))


def resolve(*requirements: str) -> dict[str, str]:
    """Version of each package that the index gives for `requirements`."""
    answer = uv(
        "pip", "compile", "--quiet", "--no-header", "--no-annotate", "-", text="\n".join(requirements)
    )
    pairs = (line.split("==") for line in answer.splitlines() if "==" in line)
    return {name: version.split(";")[0].strip() for name, version in pairs}


def compare(name: str, requirements: Iterable[str], wheel: Path) -> Framework:
    """What Pulsetrain changes for a framework's own packages."""
    alone = resolve("torch", *requirements)
    both = resolve("torch", *requirements, f"pulsetrain @ {wheel.as_uri()}")
    changed = [f"{p} {v} -> {both.get(p)}" for p, v in alone.items() if both.get(p) != v]
    return {"name": name, "packages": len(alone), "changed": changed}


def download(packages: dict[str, str], folder: Path) -> list[Path]:
    """The wheels of these packages."""
    pins = [f"{name}=={version}" for name, version in packages.items()]
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), *pins]
    subprocess.run(pip, check=True)
    return sorted(folder.glob("*.whl"))


def link_torch(folder: Path) -> None:
    """A folder that shows torch and what torch itself requires, and nothing else, of this environment."""
    folder.mkdir()
    for distribution in _closure("torch"):
        base = Path(str(distribution.locate_file("")))
        for top in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
            if not (folder / top).exists():
                (folder / top).symlink_to((base / top).resolve())


def _closure(name: str) -> Iterator[importlib.metadata.Distribution]:
    seen: set[str] = set()
    waiting = [name]
    while waiting:
        normal = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if normal in seen:
            continue
        seen.add(normal)
        try:
            found = importlib.metadata.distribution(normal)
        except importlib.metadata.PackageNotFoundError:
            continue  # of another platform
        yield found
        for line in found.requires or ():
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                waiting.append(requirement.name)


def environment(folder: Path, wheels: Iterable[Path]) -> tuple[Path, int]:
    """An environment of torch and these wheels: its Python, and the bytes that the wheels take."""
    uv("venv", "--quiet", "--python", sys.executable, folder / "venv")
    python = folder / "venv" / "bin" / "python"
    uv("pip", "install", "--quiet", "--no-deps", "--python", python, *wheels)
    packages = next((folder / "venv" / "lib").glob("python3*")) / "site-packages"
    installed = sum(
        p.stat().st_size for p in (folder / "venv").rglob("*") if p.is_file() and not p.is_symlink()
    )
    link_torch(folder / "torch")
    (packages / "torch.pth").write_text(f"{folder / 'torch'}\n")
    return python, installed


def import_ms(python: Path) -> float:
    """Milliseconds that a script's `import pulsetrain` and `pulsetrain.init` take after `import torch`."""
    took = [
        float(subprocess.run([python, "-c", IMPORT], capture_output=True, text=True, check=True).stdout)
        for _ in range(5)
    ]
    return round(min(took) * 1e3, 1)


def run_job(python: Path, folder: Path) -> dict[str, int]:
    """Rows of a job of two ranks that runs in the small environment and reports to a hub of the full one."""
    (folder / "train.py").write_text(SCRIPT)
    serve = [sys.executable, "-m", "pulsetrain.cli", "serve", "--data", str(folder / "hub")]
    with (folder / "hub.log").open("wb") as log:
        hub = subprocess.Popen([*serve, "--port", "0", "--no-dashboard"], stdout=log, stderr=log)
    try:
        facts = _await_json(folder / "hub" / "hub.json", hub)
        env = dict(os.environ, PULSETRAIN_TOKEN=facts["token"], PULSETRAIN_DATA=str(folder / "agent"))
        env.pop("PYTHONPATH", None)
        run = ["run", "--hub", facts["url"], "--nproc-per-node", "2", "--job", "footprint", "train.py"]
        command = [python, "-m", "pulsetrain.cli", *run]
        subprocess.run(command, cwd=folder, env=env, check=True, timeout=180, stdout=sys.stderr)
        return {
            record: _rows(facts, record) for record in ("spans", "steps", "metrics", "logs", "heartbeats")
        }
    finally:
        hub.terminate()
        hub.wait(30)


def _await_json(path: Path, process: subprocess.Popen[bytes]) -> dict[str, str]:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        if path.is_file():
            return json.loads(path.read_text())
        time.sleep(0.1)
    raise SystemExit("the hub did not start")


def _rows(facts: dict[str, str], record: str) -> int:
    from pulsetrain.protocol.http import HubHttp

    http = HubHttp(facts["url"], facts["token"], timeout_s=30.0)
    where = "" if record == "metrics" else " WHERE job = 'footprint'"
    return int(http.request("POST", "/", f"SELECT count() FROM {record}{where}".encode()).text)


def measure(folder: Path, frameworks: Iterable[str]) -> dict[str, object]:
    """The whole run."""
    wheel = build_wheel(folder / "dist")
    alone, both = resolve("torch"), resolve("torch", f"pulsetrain @ {wheel.as_uri()}")
    added = {name: version for name, version in both.items() if name not in alone and name != "pulsetrain"}
    wheels = [*download(added, folder / "wheels"), wheel]
    python, installed = environment(folder, wheels)
    return {
        "packages": len(wheels),
        "added": added,
        "wheel_bytes": sum(path.stat().st_size for path in wheels),
        "installed_bytes": installed,
        "import_ms": import_ms(python),
        "rows": run_job(python, folder),
        "frameworks": [compare(name, FRAMEWORKS[name], wheel) for name in frameworks],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="ask the index about one framework only")
    options = parser.parse_args()
    names = ["torchtitan"] if options.quick else list(FRAMEWORKS)
    with tempfile.TemporaryDirectory(prefix="pulsetrain-footprint-") as name:
        print(json.dumps(measure(Path(name), names)))


if __name__ == "__main__":
    main()
