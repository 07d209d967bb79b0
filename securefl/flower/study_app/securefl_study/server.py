"""The ServerApp. Flower looks for a name that is assigned in this file."""

from securefl.flower.carrier import server_app

app = server_app
