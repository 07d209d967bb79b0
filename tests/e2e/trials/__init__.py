"""What `tests/e2e/test_endurance.py` puts runs through: kills, flipped bits, full disks, second processes."""
