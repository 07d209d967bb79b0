"""The observer of a study, whom no party hears, trains for one pass."""

from __future__ import annotations

from support.cheap_runs import brief_observer

__all__ = ["brief_observer"]
