"""What all parties agree to: how sums are summed and noised, and what may leave a client at all."""

from __future__ import annotations

from securefl.engines.apart.updates import Updates
from securefl.plan import Plan

PLAN = Plan(
    sum="masked",
    corrupt=0.0,
    dropout=0.34,
    delta=1e-5,
    schedule=20,
    unprotected=("update", "evaluation"),
    largest_count=600,
)
UPDATES = Updates(metrics=("loss",), evaluation=("accuracy",))
