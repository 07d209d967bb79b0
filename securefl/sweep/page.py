"""Makes the page of a sweep: one HTML file whose figures show and hide series, without a network.

All text is escaped, and figures are inline SVG. The page's content policy forbids loading any resource, and
running any script but the page's own, which the policy names by its SHA-256. If the script cannot run, all
series are visible, and the check boxes are hidden.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pandas as pd
from markupsafe import Markup

from securefl.accounting.figures import asked_for, says_infinite, with_reason
from securefl.core.installed import versions
from securefl.report import run_page
from securefl.report.accuracy import MEASURES, Measure, joint
from securefl.report.pages import Picture, environment, number_text
from securefl.report.significance import with_interval
from securefl.storage.texts import show
from securefl.study import publication
from securefl.sweep.best import caveats, headline, table
from securefl.sweep.cells import Sweep, in_force, short_names
from securefl.sweep.run import Facts
from securefl.sweep.tradeoff import Series, filters

_COLUMNS: Final = (
    *("Epsilon asked for, or by given noise", "True epsilon", "Models tested"),
    *("Final accuracy ‡", "Best accuracy ‡", "Rounds run", "Rounds to target ‡", "Up MB", "Down MB", "Seeds"),
)
"""Of the table of numbers. On a narrow screen each stands beside its number."""
SCRIPT = """
const boxes = [...document.querySelectorAll("#filters input")];
function show() {
  const off = new Set(boxes.filter(box => !box.checked).map(box => box.value));
  for (const series of document.querySelectorAll("#series > [data-series]")) {
    const hidden = series.dataset.in.split(" ").some(value => off.has(value));
    const n = series.dataset.series;
    for (const part of document.querySelectorAll(`[data-series="${n}"], [id^="series-${n}-"]`))
      part.classList.toggle("off", hidden);
  }
}
for (const box of boxes) box.addEventListener("change", show);
document.getElementById("filters").hidden = boxes.length === 0;
show();
"""


def render(
    sweep: Sweep,
    told: Facts,
    series: Sequence[Series],
    failed: Mapping[str, str],
    reproduce: str,
    figures: Sequence[Picture],
    *,
    private: bool = True,
) -> str:
    """The page as one HTML text.

    failed: the errors of failed cells, by name. private: whether the page is for the person at this machine
    alone. Otherwise it has no warnings.
    """
    alarms = alarms_of(told) if private else {}
    choices = filters(sweep, series)
    short = short_names(sweep.keys)
    return (
        environment()
        .get_template("sweep.html.j2")
        .render(
            title=sweep.name,
            cells=len(sweep.cells),
            seeds=sorted({int(seed) for own in series for seed in own.rows["seed"]}),
            swept={key: swept_values(sweep, key) for key in sweep.keys},
            failed=failed,
            warnings={name: [own["text"] for own in ones] for name, ones in alarms.items()},
            measure=measure_of(told).words,
            notice=publication.notice("sweep.html", private=private),
            private=private,
            tested=run_page.TESTED,
            personal=publication.PERSONALLY_TESTED if any(own.personal for own in series) else "",
            sentences=dict.fromkeys(sentence for _, own in told for sentence in own["outside"]),
            caveats=caveats(sweep),
            choices={short.get(name, name): values for name, values in choices.items()},
            series=series,
            groups={own.number: _groups(own, choices) for own in series},
            rows=[(one, _numbers(own)) for one in series for _, own in one.rows.groupby("asked", sort=True)],
            held=_held(series),
            headline=headline(series),
            answer=table([own for own in series if own.known]),
            figures=figures,
            cards=cards(told),
            columns=_COLUMNS,
            versions=versions(),
            config=sweep.text,
            reproduce=reproduce,
            script=Markup(SCRIPT),
            digest=script_digest(),
        )
    )


def script_digest() -> str:
    """The digest of the page's own script, as the content policy names it."""
    return "sha256-" + base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode("ascii")


def swept_values(sweep: Sweep, key: str) -> list[str]:
    """The values of a key over all cells and arms, each once."""
    found = [show(in_force(cell, key, arm)) for cell in sweep.cells for arm in cell.study.arms]
    return list(dict.fromkeys(found))


def cards(told: Facts) -> list[tuple[str, int, Sequence[Mapping[str, Any]]]]:
    """The privacy cards of the finished cells: a cell's name, the number of others with its card, its rows.

    Cards that differ in the size of finite epsilons alone are one.
    """
    alike: dict[str, list[tuple[str, Any]]] = {}
    for cell, own in told:
        # Without the size of finite epsilons: otherwise a sweep over epsilon would have a card for each cell.
        like = repr([{**row, "epsilon": says_infinite(row["epsilon"])} for row in own["card"]])
        alike.setdefault(like, []).append((cell.name, own["card"]))
    return [(name, len(more), rows) for (name, rows), *more in alike.values()]


def alarms_of(told: Facts) -> dict[str, Sequence[Mapping[str, Any]]]:
    """The warnings of each finished cell that has some, by its name: `arm`, `text` and `learnt`."""
    return {cell.name: own["alarms"] for cell, own in told if own["alarms"]}


def measure_of(told: Facts) -> Measure:
    """The measure of accuracy in all finished cells together."""
    kinds = {own["kind"] for _, own in told} or {"classification"}
    return joint(MEASURES[kind] for kind in kinds)


def _groups(series: Series, choices: Mapping[str, Sequence[str]]) -> str:
    """The check boxes of a series, as "filter-value" numbers. It is visible if all of them are checked."""
    return " ".join(
        f"{place}-{values.index(series.values[name])}" for place, (name, values) in enumerate(choices.items())
    )


def _held(series: Sequence[Series]) -> dict[str, list[str]]:
    """What true epsilons hold for, in words, with the series whose epsilons do."""
    found: dict[str, list[str]] = {}
    for own in series:
        row = own.rows.iloc[0]
        words = f"per {row['unit']} ({row['adjacency']}), δ = {row['delta']:g}"
        found.setdefault(f"{words}, against {row['adversaries'] or 'nobody'}", []).append(own.label)
    return found


def _numbers(own: pd.DataFrame) -> list[str]:
    """A line of the table of numbers: a series at one epsilon asked for."""
    first, known = own.iloc[0], own["final_accuracy"].dropna()
    return [
        asked_for(float(first["asked"])),
        with_reason(float(own["epsilon_true"].max()), str(first["infinite_reason"])),
        ", ".join(own["models"].unique()),
        with_interval(known.tolist()),
        number_text(float(own["best_accuracy"].mean()), 3),
        f"{float(own['rounds'].mean()):.3g}",
        _rounds(own),
        *(f"{float(own[name].mean()) / 1e6:.3g}" for name in ("bytes_up", "bytes_down")),
        str(len(own)),
    ]


def _rounds(own: pd.DataFrame) -> str:
    if own["target"].isna().all():
        return "–"
    # The mean is over the seeds that reached the target, so their number stands beside it.
    known = own["first_round_at_target"].dropna()
    if not len(known):
        return "–" if own["best_accuracy"].isna().all() else "never"
    mean = f"{float(known.mean()):.3g}"
    return mean if len(known) == len(own) else f"{mean} ({len(known)} of {len(own)} seeds)"
