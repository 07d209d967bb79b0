"""Engines move the bytes between machines."""
