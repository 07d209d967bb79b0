"""A securefl study as a Flower app."""
