"""Pictures of runs stay blank here."""

from __future__ import annotations

from support.cheap_runs import blank_pictures

__all__ = ["blank_pictures"]
