"""The HTML report of a study (see `pages`): the answer, one picture, then privacy, costs and tables.

A report may be opened anywhere. Its answer is derived from the table of arms (see `sentences`), lost
races included. A run has two: one that may be published, and one with all figures.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from securefl.core.release import KEY_HOLDER, OTHERS, SERVER
from securefl.report.pages import environment

_TEMPLATE = "run.html.j2"
_FIGURES: Final = (
    *(("auc", "AUC"), ("f1", "F1"), ("ece", "Calibration error")),
    *(("r2", "R²"), ("rmse", "RMSE")),
)
"""The measures that not every task has, and their titles."""
_PARTIES: Final = {
    SERVER: "The server",
    KEY_HOLDER: "The key holder",
    OTHERS: "Other clients, observers",
}
TESTED: Final = (
    "Accuracy of a global model is measured on the server's own test records, which no epsilon covers."
)


@dataclass(frozen=True, kw_only=True)
class LedgerRow:
    """The ledger of one arm under one seed: how many entries its chain has, and the last digest, in hex."""

    arm: str
    seed: int
    count: int
    head: str


@dataclass(frozen=True, kw_only=True)
class ArmSummary:
    """One arm of a study in numbers, with means over several seeds. An unknown number is nan.

    final_accuracy, best_accuracy: shares, 0 to 1. by_seed: the final accuracy of each seed. target: the
    accuracy aimed at, or None. rounds_to_target: None if the arm never reached the target. megabytes_up,
    megabytes_down: of the whole run, all clients together (1 MB = 1e6 bytes). seconds_model, watt_hours: of
    the whole run, by the cost model. wall_seconds: the time of the run here. epsilon: the cost of each
    party's view to a data holder, by party, inf if nothing protects it. sparse: whether sums were sent
    without their zeros. zeros: whether such sums were hidden, and so sent with them. models: "global" or
    "personal", the models that have this accuracy.

    floor: the accuracy of the best constant answer.
    """

    name: str
    protocol: str
    aggregation: str
    final_accuracy: float = math.nan
    best_accuracy: float = math.nan
    by_seed: Sequence[float] = ()
    rounds_to_target: int | None = None
    target: float | None = None
    megabytes_up: float
    megabytes_down: float
    seconds_model: float = math.nan
    watt_hours: float = math.nan
    wall_seconds: float = math.nan
    epsilon: Mapping[str, float]
    sparse: bool = False
    zeros: bool = False
    models: str = "global"
    floor: float = math.nan

    @property
    def no_better(self) -> bool:
        """Whether one constant answer is as accurate. False if either accuracy is unknown."""
        return self.final_accuracy <= self.floor


@dataclass(frozen=True, kw_only=True)
class PrivacyRow:
    """One line of the privacy card, with the arms to which it applies.

    `epsilon` is text, see `accounting.figures`. learns: with all assumptions. shortly: without them.
    """

    party: str
    arms: Sequence[str]
    learns: str
    epsilon: str
    shortly: str = ""


def render(report: Mapping[str, Any]) -> str:
    """The report as one HTML text. A name that the page needs and `report` lacks is an error.

    report: title; answer: one sentence; price: what a finite epsilon cost, or empty; table: the arms in
    short, a head and a row for each (`sentences.rows`); summary: an `ArmSummary` for each; privacy: the rows
    of the card; figures: each a `Picture`, the most important one first; config: the TOML text as run;
    reproduce: the command that makes it again; versions, by package; seeds; bought: sentences on how many
    rounds the budgets bought, if they ended; quiet: sentences on rounds without a question, and on arms that
    stopped early; changes: those of private training in the model; ledgers: the head of each ledger's chain
    when its run ended, to note elsewhere; alarms: what a person must not overlook, in sentences; reasons: why
    parts of clients are missing, the rows of `study.results.abstentions`; measure: what "accuracy" is, in
    words; outside: what no epsilon covers, in sentences; measures: a row for each arm's model and each of the
    observer's own, nan where it has none; observers: whose the observer's models are, in words; notice: what
    the page says first of whether it may be published; private: whether it has figures that are not for
    publication: alarms, reasons, `bought`, times, and those of clients and of personal models.
    """
    page = environment().get_template(_TEMPLATE)
    return page.render(report=report, tested=TESTED, flow=_flow(report["privacy"]), figures=_FIGURES)


def _flow(card: Sequence[PrivacyRow]) -> list[tuple[str, list[tuple[str, str, list[str]]]]]:
    """Each party with what it learns, at which epsilon, and in which arms. Equal sights are one."""
    parties: dict[str, dict[tuple[str, str], list[str]]] = {}
    for row in card:
        sights = parties.setdefault(_PARTIES.get(row.party, row.party), {})
        sights.setdefault((row.shortly or row.learns, row.epsilon), []).extend(row.arms)
    return [
        (party, [(learns, epsilon, arms) for (learns, epsilon), arms in sights.items()])
        for party, sights in parties.items()
    ]
