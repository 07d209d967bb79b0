"""The benchmark as a Flower app."""
