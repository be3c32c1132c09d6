"""Wrong matrix products, in this process and in one that only has the environment."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from pulsetrain import faults
from pulsetrain.faults import arithmetic

STARTUP = Path(faults.__file__).parent / "startup"
SCRIPT = "import torch; x = torch.ones(2, 2); print((x @ x).tolist())"


def test_without_the_file_products_are_right_and_with_it_every_nth_is_wrong(tmp_path):
    file, x = tmp_path / "fault", torch.ones(2, 2)
    undo = arithmetic.damage(file)
    try:
        assert (x @ x).tolist() == [[2, 2], [2, 2]]
        arithmetic.begin(file, every=2)
        assert [(x @ x)[0, 0].item() for _ in range(4)] == [2, 3, 2, 3]
    finally:
        undo()
    assert (x @ x).tolist() == [[2, 2], [2, 2]]


def test_nothing_is_changed_where_the_environment_names_no_file():
    before = list(sys.meta_path)
    assert not arithmetic.install({})
    assert sys.meta_path == before


@pytest.mark.integration
def test_a_process_obeys_what_its_environment_names(tmp_path):
    file = tmp_path / "fault"
    environ = os.environ | {"PYTHONPATH": str(STARTUP), arithmetic.ENVIRONMENT: str(file)}
    arithmetic.begin(file)
    run = subprocess.run([sys.executable, "-c", SCRIPT], env=environ, capture_output=True, check=True)
    assert run.stdout.decode().strip() == "[[3.0, 2.0], [2.0, 2.0]]"
