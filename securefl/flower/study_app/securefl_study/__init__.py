"""A Flower app that runs a study (see `securefl.flower.studies`)."""
