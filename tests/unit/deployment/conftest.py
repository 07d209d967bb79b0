"""Runs here leave out what takes most of their time, but where a module looks at it."""

from __future__ import annotations

from support.cheap_runs import blank_pictures, brief_observer, coarse_figures

__all__ = ["blank_pictures", "brief_observer", "coarse_figures"]
