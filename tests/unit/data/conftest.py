"""Reports of the runs here have blank pictures: no test here looks at one."""

from __future__ import annotations

from support.cheap_runs import blank_pictures

__all__ = ["blank_pictures"]
