"""A Flower app that carries requests (see `securefl.flower.carrier`)."""
