"""Sweeps: a study for every cell of a grid, and a page of what privacy costs."""
