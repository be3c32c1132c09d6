"""Public: Pulsetrain's checkpoints behind `torch.distributed.checkpoint`'s reader and writer."""

from pulsetrain.checkpoint.dcp import PulsetrainReader, PulsetrainWriter, export_dcp

__all__ = ["PulsetrainReader", "PulsetrainWriter", "export_dcp"]
