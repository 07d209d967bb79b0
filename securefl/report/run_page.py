"""The HTML report of a study: one file that needs no network and no script.

Everything is escaped, figures are embedded as images, and a content policy in the page forbids loading or
running anything, so that a report may be mailed around and opened anywhere. The three sentences at its top
are derived from the table of arms (`sentences.sentences`), lost races included.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Final

from jinja2 import Environment, StrictUndefined
from matplotlib.figure import Figure

from securefl.accounting.figures import in_words
from securefl.core.errors import ConfigError
from securefl.storage.files import write as write_file

_TEMPLATE = "run.html.j2"
_DOTS_PER_INCH = 180
APART: Final = "Not for publication: no epsilon covers this."
"""Beside each figure, table and list of the page that is for the person at this machine."""
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

    final_accuracy, best_accuracy: shares, 0 to 1. target: the accuracy aimed at, or None. rounds_to_target:
    None if the arm never reached the target. megabytes_up, megabytes_down: of the whole run, all clients
    together (1 MB = 1e6 bytes). seconds_model, watt_hours: of the whole run, by the cost model. wall_seconds:
    the time of the run here. epsilon: the cost of each party's view to a data holder, by party, inf if
    nothing protects it. sparse: whether sums were sent without their zeros. models: "global" or "personal",
    the models that have this accuracy.

    floor: the accuracy of the best constant answer. auc, f1, ece, r2, rmse: see `training.measures.Measures`.
    worst_decile: the mean accuracy of the tenth of the clients with the lowest accuracies. pooled, alone: the
    accuracy of the observer's own models on the same records (see `study.observed`).
    Raises ConfigError for rounds to a target without a target.
    """

    name: str
    protocol: str
    aggregation: str
    final_accuracy: float
    best_accuracy: float
    rounds_to_target: int | None
    target: float | None
    megabytes_up: float
    megabytes_down: float
    seconds_model: float
    watt_hours: float
    wall_seconds: float
    epsilon: Mapping[str, float]
    sparse: bool = False
    models: str = "global"
    floor: float = math.nan
    auc: float = math.nan
    f1: float = math.nan
    ece: float = math.nan
    r2: float = math.nan
    rmse: float = math.nan
    worst_decile: float = math.nan
    pooled: float = math.nan
    alone: float = math.nan

    def __post_init__(self) -> None:
        if self.rounds_to_target is not None and self.target is None:
            raise ConfigError(
                f"Expected a target for {self.name!r}, which has rounds to it, got none. Pass `target`."
            )


@dataclass(frozen=True, kw_only=True)
class PrivacyRow:
    """One line of the privacy card, with the arms to which it applies.

    `epsilon` is text, see `accounting.figures`.
    """

    party: str
    arms: Sequence[str]
    learns: str
    epsilon: str


@dataclass(frozen=True, kw_only=True, eq=False)
class ReportFigure:
    """A figure with its heading and caption. The caption is also the alternative text of the image.

    private: whether it must not be published; the page then says so. note: a sentence beside it.
    """

    title: str
    caption: str
    figure: Figure
    private: bool = False
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class ReasonRow:
    """A reason for missing values in one arm. clients: the number of clients; 0 for a server's reason."""

    arm: str
    who: str
    what: str
    reason: str
    clients: int
    rounds: int
    times: int
    told: str = ""


@dataclass(frozen=True, kw_only=True)
class MeasureRow:
    """The measures of a model after the last round, as means over the seeds; nan where it has none.

    models: "global" or "personal", the models that are tested. at_clients, worst_decile: the mean accuracy on
    test records like each client's own, and that of the tenth of the clients with the lowest accuracies.
    private: whether no figure of the row is for publication. at_clients and worst_decile never are.
    """

    name: str
    models: str
    accuracy: float
    auc: float
    f1: float
    ece: float
    r2: float
    rmse: float
    at_clients: float
    worst_decile: float
    private: bool


@dataclass(frozen=True, kw_only=True, eq=False)
class ReportData:
    """The contents of a report.

    config: the TOML text as run. reproduce: the command that makes it again. bought: sentences on how many
    rounds the budgets bought, if they ended. quiet: sentences on rounds without a question. changes: the
    changes of private training in the model. ledgers: the head of each ledger's chain when its run ended, to
    note elsewhere. alarms: what a person must not overlook, in sentences. reasons: why parts of clients are
    missing. measure: what "accuracy" is, in words. outside: what no epsilon covers, in sentences. measures:
    of each arm's model and of the observer's own. observers: whose the observer's models are, in words.

    Alarms, reasons, `bought` and private figures are not for publication. The page says so beside each.
    """

    title: str
    sentences: tuple[str, str, str]
    privacy: Sequence[PrivacyRow]
    config: str
    summary: Sequence[ArmSummary]
    figures: Sequence[ReportFigure]
    versions: Mapping[str, str]
    seeds: Sequence[int]
    reproduce: str
    bought: Sequence[str] = ()
    quiet: Sequence[str] = ()
    changes: Sequence[str] = ()
    ledgers: Sequence[LedgerRow] = ()
    alarms: Sequence[str] = ()
    reasons: Sequence[ReasonRow] = ()
    measure: str = ""
    outside: Sequence[str] = ()
    measures: Sequence[MeasureRow] = ()
    observers: str = ""


def write(path: Path, data: ReportData) -> None:
    """Write the report to `path` as UTF-8 HTML, over what was there. Raises OSError where that fails."""
    write_file(path, render(data))


def render(data: ReportData) -> str:
    """Return the report as one HTML text."""
    # Names come from untrusted files, so all text is escaped. StrictUndefined raises if a template uses an
    # unknown name.
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["image"] = _image
    environment.filters["number"] = number_text
    environment.filters["epsilon"] = in_words
    environment.tests["known"] = math.isfinite
    source = files("securefl.report").joinpath(_TEMPLATE).read_text(encoding="utf-8")
    return environment.from_string(source).render(report=data, apart=APART, tested=TESTED)


def number_text(value: float, digits: int = 1) -> str:
    """A number with `digits` decimals and thin gaps between thousands; a dash for nan."""
    if not math.isfinite(value):
        return "–"
    # A narrow no-break space: a number does not break at the end of a line.
    return f"{value:,.{digits}f}".replace(",", "\u202f")


def _image(figure: Figure) -> str:
    buffer = io.BytesIO()
    # Matplotlib would write its version and address into the file.
    figure.savefig(buffer, format="png", dpi=_DOTS_PER_INCH, metadata={"Software": None})
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
