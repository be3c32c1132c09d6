"""Findings joined into stories, and what people are told of them."""
