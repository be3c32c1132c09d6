"""The Python of the README runs, in the order in which it stands there."""

import json
import re
import subprocess
import sys

import pytest

from tests.repository import ROOT

BEFORE = """
import torch

mesh = None
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loss_fn = torch.nn.functional.mse_loss
inputs, targets = torch.ones(3, 4), torch.ones(3, 2)
loader = [(inputs, targets)]
step = 0
"""


@pytest.mark.integration
@pytest.mark.parametrize("page", ["README.md", "docs/watch-your-own-job.md"])
def test_the_script_runs_as_a_job(page, tmp_path):
    snippets = re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), flags=re.S | re.M)
    assert snippets
    script = tmp_path / "train.py"
    script.write_text("\n".join([BEFORE, *snippets]))
    words = ["run", "--standalone", "--json", "--data", str(tmp_path / "data"), str(script)]
    done = subprocess.run(
        [sys.executable, "-m", "pulsetrain.cli", *words],
        capture_output=True,
        text=True,
        timeout=140,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["exit_code"] == 0
