"""Parallelism of unequal size: what a job does with the devices that are left."""

from pulsetrain.elastic.sampler import ElasticSampler, Share, accumulation_steps

__all__ = ["ElasticSampler", "Share", "accumulation_steps"]
