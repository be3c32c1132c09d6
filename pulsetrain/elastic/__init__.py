"""Parallelism of unequal size: what a job does with the devices that are left."""

from pulsetrain.elastic.batch_scaling import ScaledBatch, scale_learning_rates, scaled_batch
from pulsetrain.elastic.sampler import ElasticSampler, Share, accumulation_steps
from pulsetrain.elastic.stream import ElasticStream, StreamShare

__all__ = [
    "ElasticSampler",
    "ElasticStream",
    "ScaledBatch",
    "Share",
    "StreamShare",
    "accumulation_steps",
    "scale_learning_rates",
    "scaled_batch",
]
