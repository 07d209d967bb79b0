"""Decides which figures of a run may be published, and which are for the person at its machine alone.

One rule holds for tables, summaries, pictures, pages and objects, at every epsilon (see
`storage.private_folder`). What stands outside of a private folder is made from `published` alone. That names
what it keeps, so a new figure is private until it is named there.

The accuracy of a global model is measured on the server's own test records. Epsilon covers the clients'
records there, and nothing covers the test records: the server decides whether to publish about them. The
accuracy of personal models is not for publication: it is computed from models that never left their clients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from securefl.storage.private_folder import NOTICE
from securefl.storage.private_folder import PRIVATE as FOLDER

if TYPE_CHECKING:
    import pandas as pd

    from securefl.report.run_page import ArmSummary
    from securefl.study.results import Results

PERSONAL: Final = "personal"
PERSONALLY_TESTED: Final = "Accuracies of personal models are not for publication: no epsilon covers them."
ON_TERMINAL: Final = (
    "Warnings, reasons and who took part are for the person at this machine: no epsilon covers them."
)
MEASURED: Final = ("seconds", "watt_hours", "wall_seconds", "answered", "survivors_lost")
"""Columns of the metrics that depend on clients' numbers of records, on their answers or on the clock."""
OF_CLIENTS: Final = ("at_clients", "worst_decile", "clients")
"""Columns of the measures that depend on clients' own records."""
ACCURACIES: Final = ("accuracy", "loss", "floor", "final_accuracy", "best_accuracy", "first_round_at_target")
"""Columns that are not for publication where models are personal."""
OF_ARM: Final = (
    *("name", "protocol", "aggregation", "target", "megabytes_up", "megabytes_down", "epsilon", "sparse"),
    *("zeros", "models"),
)
"""Figures of an arm that may be published."""
TESTED_OF_ARM: Final = ("final_accuracy", "best_accuracy", "by_seed", "rounds_to_target", "floor")
"""Figures of an arm that may be published if its model is global."""


def published(results: Results) -> Results:
    """The part of a run's results that may be published. What is private has no rows and no values there."""
    return type(results)(
        metrics=public(results.metrics),
        participation=results.participation.iloc[:0],
        figures=results.figures.iloc[:0],
        summary=tuple(map(_of_arm, results.summary)),
        ledgers=results.ledgers,
        attendance=results.attendance.iloc[:0],
        abstentions=results.abstentions.iloc[:0],
        alarms=(),
        measures=publishable(results.measures),
        confusion=publishable(results.confusion),
        reliability=publishable(results.reliability),
        kind=results.kind,
        accounting=results.accounting,
        price=results.price,  # of arms with global models, from what is kept of them
        infinite_reason=results.infinite_reason,
        over_rounds=results.over_rounds,
        stopped=results.stopped,  # tests on the server's own records decided it
    )


def _of_arm(arm: ArmSummary) -> ArmSummary:
    kept = OF_ARM if arm.models == PERSONAL else (*OF_ARM, *TESTED_OF_ARM)
    return type(arm)(**{name: getattr(arm, name) for name in kept})


def notice(page: str, *, private: bool) -> str:
    """What a page of this name says first, outside of the private folder and inside."""
    if private:
        said = NOTICE.replace("in this file", "on this page")
        return f"{said} The page {page} beside this folder may be published."
    return (
        "This page may be published. Figures that no epsilon covers are on a page of their own, "
        f"{FOLDER}/{page}, for the person at the machine."
    )


def comparable(summary: Sequence[ArmSummary]) -> list[ArmSummary]:
    """The arms whose accuracies may be published."""
    return [arm for arm in summary if arm.models != PERSONAL]


def public(table: pd.DataFrame) -> pd.DataFrame:
    """The publishable part of a table of rounds or runs.

    Columns of `MEASURED` are left out. Accuracies of personal models, by the column `models`, are empty.
    """
    kept = table.drop(columns=[name for name in MEASURED if name in table.columns])
    if "models" in kept.columns:
        own, personal = [name for name in ACCURACIES if name in kept.columns], kept["models"] == PERSONAL
        if personal.any():
            kept[own] = kept[own].mask(personal)
    return kept


def publishable(measures: pd.DataFrame) -> pd.DataFrame:
    """The publishable part of a table of measures: those of global models of arms, and of a constant answer.

    The observer's own models are not for publication, and no figure of single clients is.
    """
    kept = measures[measures["kind"].isin(("arm", "constant")) & (measures["models"] != PERSONAL)]
    return kept.drop(columns=[name for name in OF_CLIENTS if name in kept.columns])
