"""The ClientApp. Flower looks for a name that is assigned in this file."""

from securefl.flower.studies import client_app

app = client_app
