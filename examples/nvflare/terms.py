"""What all parties agree to: how sums are summed, and what may leave a site at all."""

from __future__ import annotations

from securefl import Plan
from securefl.deployment import Updates

PLAN = Plan(
    sum="masked",
    corrupt=0.0,
    dropout=0.2,
    min_cohort_size=5,
    max_cohort_size=5,
    min_honest=3,
    # A site with 400 records, two with 300, and one that looks on: a guess errs by 0.72 of a spread.
    max_client_weight=0.48,
    weights={"update": "counts"},
    min_num_examples=300,
    max_num_examples=400,
    delta=1e-5,
    max_rounds=20,
    non_private=("update",),
)
UPDATES = Updates(metrics=("loss",))
