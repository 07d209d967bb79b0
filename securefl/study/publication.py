"""Which figures of a run may be published, and which are for the person at its machine alone.

The rule is one for tables, summaries, pages and objects, whatever epsilon is (see `storage.private_folder`).
The accuracy of a global model is measured on the server's own test records. Epsilon covers what it tells of
clients' records, and nothing covers the test records: they are the server's to publish. The accuracy of
personal models is not for publication: it reads models that never left their clients.
"""

from __future__ import annotations

from typing import Final

import pandas as pd

PERSONAL: Final = "personal"
PERSONALLY_TESTED: Final = "Accuracies of personal models are not for publication: no epsilon covers them."
ON_TERMINAL: Final = (
    "Warnings, reasons and who took part are for the person at this machine: no epsilon covers them."
)
MEASURED: Final = ("seconds", "watt_hours", "wall_seconds", "answered", "survivors_lost")
"""Columns of the metrics that follow from clients' numbers of records, from answers and from the clock."""
ACCURACIES: Final = ("accuracy", "loss", "final_accuracy", "best_accuracy", "rounds_to_target")
"""Figures that are not for publication where models are personal."""


def public(table: pd.DataFrame) -> pd.DataFrame:
    """A table of rounds or runs, with its column `models`, as it may be published.

    Columns of `MEASURED` are left out. Accuracies of personal models are empty.
    """
    kept = table.drop(columns=[name for name in MEASURED if name in table.columns])
    if "models" in kept.columns:
        own = [name for name in ACCURACIES if name in kept.columns]
        kept[own] = kept[own].mask(kept["models"] == PERSONAL)
    return kept
