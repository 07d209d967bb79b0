"""Reproduces published tables: their figures as constants, studies that measure them, and a comparison."""
