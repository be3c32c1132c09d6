"""An update that another rank computed for this one, and has not ended."""

from __future__ import annotations


class UpdateLostError(RuntimeError):
    """The rank that computed an update for all has not ended it. What there was before is gone."""


UNSAVED = "not saved: an update that another rank computed for this one is half done"
