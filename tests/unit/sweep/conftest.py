"""Runs here leave out what takes most of their time, but where a module looks at it."""

from __future__ import annotations

from support.cheap_runs import blank_pictures, blank_plots, brief_observer, coarse_figures, copied_workers

__all__ = ["blank_pictures", "blank_plots", "brief_observer", "coarse_figures", "copied_workers"]
