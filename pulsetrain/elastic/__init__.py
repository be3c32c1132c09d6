"""Parallelism of unequal size: what a job does with the devices that are left."""

from pulsetrain.elastic.sampler import ElasticSampler, Share, accumulation_steps
from pulsetrain.elastic.stream import ElasticStream, StreamShare

__all__ = ["ElasticSampler", "ElasticStream", "Share", "StreamShare", "accumulation_steps"]
