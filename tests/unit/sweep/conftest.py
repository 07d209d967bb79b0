"""Pictures of runs stay blank here, and workers of sweeps are copies of this process."""

from __future__ import annotations

from support.cheap_runs import blank_pictures, copied_workers

__all__ = ["blank_pictures", "copied_workers"]
