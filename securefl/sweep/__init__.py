"""Sweeps: runs a study for every cell of a grid, and plots accuracy against epsilon and bytes."""
