"""What all parties agree to: how sums are summed and noised, and what may leave a client at all."""

from __future__ import annotations

from securefl.algorithm.plan import Plan
from securefl.engine.apart.updates import Updates

PLAN = Plan(
    sum="masked",
    corrupt=0.0,
    dropout=0.25,
    least_cohort=4,
    largest_cohort=4,
    least_honest=3,
    # A client with 400 records beside two with 300: a guess of its update errs by 0.72 of its spread.
    largest_share=0.48,
    weights={"update": "counts"},
    least_count=300,
    largest_count=400,
    delta=1e-5,
    schedule=20,
    unprotected=("update", "evaluation"),
)
UPDATES = Updates(metrics=("loss",), evaluation=("accuracy",))
