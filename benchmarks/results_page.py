"""The tables of docs/results.md that follow from the files in benchmarks/results.

    python benchmarks/results_page.py [--write]    # are the rows below each heading so, or write them

Headings and sentences are a person's. The page's other figures are compared by tests/e2e/test_figures.py.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import entry_points
from typing import Any

import pandas as pd
from kept import DOCS, RESULTS, read

from securefl.published import comparison

sys.path.append(str(DOCS.parent / "tools"))
import made

PAGE = DOCS / "results.md"
Cells = list[str]


class Figure:
    """One measure of one system: a row of a file that `comparison.write` made."""

    def __init__(self, row: pd.Series[Any]) -> None:
        self._row, self.least = row, "≥ " if row["reached"] < row["seeds"] else ""
        self.p = "" if pd.isna(row["adjusted_p"]) else f"{row['adjusted_p']:.3f}"
        self.reached = f"{row['reached']} of {row['seeds']}"

    def printed(self, form: str, without: str = "–") -> str:
        """The paper's figure, or `without` if it prints none."""
        return without if pd.isna(self._row["published"]) else format(self._row["published"], form)

    def measured(self, digits: int) -> str:
        """The mean over seeds, and their standard deviation if there are several."""
        row = self._row
        spread = "" if row["seeds"] == 1 else f" ± {row['deviation']:.{digits}f}"
        return f"{row['measured']:.{digits}f}{spread}"

    def both(self, form: str, digits: int, without: str = "–") -> str:
        return f"{self.printed(form, without)}, {self.measured(digits)}"


def beside_published(file: str, measures: Sequence[str], shown: Callable[..., Cells]) -> Cells:
    """The rows of a published table. shown: makes the cells of one system from the figures of `measures`."""
    (table,) = entry_points(group="securefl.tables", name=file.removesuffix("_tuned"))
    kept = comparison.read(RESULTS / f"{file}.csv", table.load())
    rows = []
    for (part, system), own in kept.groupby(["part", "system"], sort=False):
        figures = {row["measure"]: Figure(row) for _, row in own.iterrows()}
        name = system if kept["part"].nunique() == 1 else f"{part.replace(' aggregation', '')}: {system}"
        rows.append(_row(name, *shown(*(figures[measure] for measure in measures))))
    return rows


def _row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def _best_and_rounds(best: Figure, rounds: Figure) -> Cells:
    return [best.both(".3f", 3), best.p, rounds.both(".0f", 1), rounds.reached, rounds.p]


def _last_and_sent(last: Figure, sent: Figure) -> Cells:
    return [
        last.printed(".4f"),
        last.measured(3),
        sent.printed("g"),
        sent.least + sent.measured(1),
        sent.reached,
    ]


def _shares(whole: Figure, alone: Figure, parameters: Figure, macs: Figure) -> Cells:
    return [*(one.both("g", 3) for one in (whole, alone, parameters, macs)), whole.p]


def _three_targets(whole: Figure, alone: Figure, *rounds: Figure) -> Cells:
    published = ", ".join(one.printed(".0f") for one in rounds)
    return [whole.both("g", 3), alone.both("g", 3), published, rounds[0].reached]


_BEST = ("best accuracy", "rounds")
_SENT = ("last accuracy", "Mb sent")
_OWN = ("global accuracy", "local accuracy")

PUBLISHED: Mapping[str, tuple[str, Sequence[str], Callable[..., Cells]]] = {
    "FedProf's Table 3": ("fedprof_v2_table_3", _BEST, _best_and_rounds),
    "FedProf's Table 4": ("fedprof_v2_table_4_twin", _BEST, _best_and_rounds),
    "FedProf's Table 5": ("fedprof_v2_table_5_twin", _BEST, _best_and_rounds),
    "FedProf v1's Table 2": ("fedprof_v1_table_2", _BEST, _best_and_rounds),
    "FedProf v1's Table 2, tuned": ("fedprof_v1_table_2_tuned", _BEST, _best_and_rounds),
    "FedProf v1's Table 3": ("fedprof_v1_table_3_twin", _BEST, _best_and_rounds),
    "FedCor's Table 1": (
        "fedcor_table_1_twin",
        ("rounds",),
        lambda rounds: [rounds.both(".1f", 1, "N/A"), rounds.reached, rounds.p],
    ),
    "FedCor's Table 1 on CIFAR-10": (
        "fedcor_table_1_cifar10_twin",
        _BEST,
        lambda best, rounds: [rounds.printed(".1f", "N/A"), rounds.reached, best.measured(3), best.p],
    ),
    "FedLog's Table 1": ("fedlog_table_1_mnist_twin", _SENT, _last_and_sent),
    "FedLog's Table 1 on CIFAR-10": (
        "fedlog_table_1_cifar10_twin",
        _SENT,
        _last_and_sent,
    ),
    "FedLog's Figure 2, two lengths of bodies": (
        "fedlog_figure_2_flexible",
        ("last accuracy", "best accuracy"),
        lambda last, best: [last.printed(".4f"), last.measured(3), best.measured(3), last.p],
    ),
    "ADDS' Table III, all systems": (
        "adds_table_3_all_rows",
        (*_OWN, "parameters (share)", "MACs (share)"),
        _shares,
    ),
    "ADDS' Table IV": (
        "adds_table_4_twin",
        (*_OWN, "rounds to 0.4", "rounds to 0.45", "rounds to 0.5"),
        _three_targets,
    ),
}
"""By the section's heading: the file, its table, and the cells of a system from these measures."""


def lenet5() -> Iterator[str]:
    for row in read("fedprof_lenet5.csv").to_dict("records"):
        reached = row["rounds_to_target"]
        yield _row(
            "standardised" if "0.1307" in row["data.scaling"] else "0 to 1",
            f"{row['local.learning_rate']:g}",
            "their last model" if row["arm.stale"] else "the old global model",
            f"{row['final_accuracy']:.3f}",
            f"{row['best_accuracy']:.3f}",
            "–" if pd.isna(reached) else f"{reached:.0f}",
        )


def ablations() -> Iterator[str]:
    groups = read("fedcor_ablations.csv").groupby(
        ["arm.interval", "arm.annealing", "arm.warm_up"], sort=False
    )
    for (interval, beta, warm_up), own in groups:
        yield _row(
            interval,
            f"{beta:g}",
            warm_up,
            ", ".join(f"{rounds:.0f}" for rounds in own["rounds_to_target"]),
            *(f"{own[name].mean():.3f}" for name in ("final_accuracy", "best_accuracy")),
            f"{own['bytes_down'].mean() / 1e9:.2f}",
        )


def whole(file: str, *without: str) -> Iterator[str]:
    """Every row of a file as it stands."""
    table = pd.read_csv(RESULTS / file, dtype=str, comment="#").drop(columns=[*without])
    return (_row(*row) for row in table.fillna("").to_numpy())


OTHERS: Mapping[str, Callable[[], Iterator[str]]] = {
    "LeNet-5 under full aggregation": lenet5,
    "FedCor's ablations": ablations,
    "How normal representations are": lambda: whole("representations.csv", "elements"),
    "Targets by protocol": lambda: whole("targets.csv"),
    "Encrypted matching": lambda: whole("matching.csv"),
    "Matching between files": lambda: whole("matching_files.csv"),
    "Frozen parts at an epsilon per client": lambda: whole("frozen_parts.csv"),
    "Kinds of models and files": lambda: whole("brought_kinds.csv"),
    "What a protocol's round takes": lambda: whole("protocol_times.csv"),
}


def rows() -> dict[str, list[str]]:
    """The rows of every table that is written from a file, by the heading of its section."""
    found = {heading: beside_published(*own) for heading, own in PUBLISHED.items()}
    return found | {heading: list(make()) for heading, make in OTHERS.items()}


def written(text: str, heading: str, lines: Sequence[str]) -> str:
    """The page with these rows in the first table of a section.

    Raises ValueError if the section has no table.
    """
    before, section = text.split(f"\n## {heading}\n")
    found = re.search(r"(?m)^(\|.*\n\|[-| ]+\|\n)((?:\|.*\n)*)", section)
    if found is None or "\n## " in section[: found.start()]:
        raise ValueError(f"Expected a table under {heading!r} in {PAGE}, got none. Write its heading there.")
    table = "".join(f"{row}\n" for row in lines)
    return f"{before}\n## {heading}\n{section[: found.end(1)]}{table}{section[found.end() :]}"


def page() -> str:
    """The page with all its tables as their files have them."""
    text = PAGE.read_text(encoding="utf-8")
    for heading, found in rows().items():
        text = written(text, heading, found)
    return text


if __name__ == "__main__":
    made.main({PAGE: page()})
