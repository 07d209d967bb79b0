"""Heads in closed form on frozen features: one exchange of sums gives a linear classifier."""

from securefl.protocols.heads.options import Heads

__all__ = ["Heads"]
