"""The ServerApp. Flower looks for a name that is assigned in this file."""

from securefl.flower.studies import server_app

app = server_app
