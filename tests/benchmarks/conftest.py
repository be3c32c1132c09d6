"""Lets tests import what the benchmarks are made of, as a benchmark itself does."""

from __future__ import annotations

import sys

from tests.repository import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))
