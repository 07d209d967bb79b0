"""What `endurance.py` puts runs through: kills, flipped bits, full disks, second processes, many rounds."""
