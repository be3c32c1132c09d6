"""The example with three dimensions of parallelism, whose ranks can go on in their processes."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

import train_gpt

import pulsetrain

pulsetrain.restartable(lambda: train_gpt.train(train_gpt.arguments()))()
