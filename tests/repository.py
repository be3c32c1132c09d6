"""Where this checkout and the recordings that tests read are."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("PULSETRAIN_TEST_DATA", ROOT.parent / "shared" / "data"))
