"""Decides which figures of a run may be published, and which are for the person at its machine alone.

One rule holds for tables, summaries, pages and objects, at every epsilon (see `storage.private_folder`). The
accuracy of a global model is measured on the server's own test records. Epsilon covers the clients' records
there, and nothing covers the test records: the server decides whether to publish about them. The accuracy of
personal models is not for publication: it is computed from models that never left their clients.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import pandas as pd


PERSONAL: Final = "personal"
PERSONALLY_TESTED: Final = "Accuracies of personal models are not for publication: no epsilon covers them."
ON_TERMINAL: Final = (
    "Warnings, reasons and who took part are for the person at this machine: no epsilon covers them."
)
MEASURED: Final = ("seconds", "watt_hours", "wall_seconds", "answered", "survivors_lost")
"""Columns of the metrics that depend on clients' numbers of records, on their answers or on the clock."""
OF_CLIENTS: Final = ("at_clients", "worst_decile", "clients")
"""Columns of the measures that depend on clients' own records."""
ACCURACIES: Final = ("accuracy", "loss", "floor", "final_accuracy", "best_accuracy", "rounds_to_target")
"""Figures that are not for publication where models are personal."""


def public(table: pd.DataFrame) -> pd.DataFrame:
    """The publishable part of a table of rounds or runs.

    Columns of `MEASURED` are left out. Accuracies of personal models, by the column `models`, are empty.
    """
    kept = table.drop(columns=[name for name in MEASURED if name in table.columns])
    if "models" in kept.columns:
        own = [name for name in ACCURACIES if name in kept.columns]
        kept[own] = kept[own].mask(kept["models"] == PERSONAL)
    return kept


def publishable(measures: pd.DataFrame) -> pd.DataFrame:
    """The publishable part of a table of measures: those of global models of arms, and of a constant answer.

    The observer's own models are not for publication, and no figure of single clients is.
    """
    kept = measures[measures["kind"].isin(("arm", "constant")) & (measures["models"] != PERSONAL)]
    return kept.drop(columns=[name for name in OF_CLIENTS if name in kept.columns])
