"""Lets tests import what the benchmarks are made of, as a benchmark itself does."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
