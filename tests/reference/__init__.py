"""Slow or leaky forms of what the product does otherwise, for tests to compare it with."""
