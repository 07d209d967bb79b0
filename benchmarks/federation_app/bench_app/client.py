"""The ClientApp of the benchmark."""

from __future__ import annotations

from federation_client import Either

app = Either()
