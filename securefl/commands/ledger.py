"""The commands `ledger show`, `curve`, `runs` and `epsilon`: releases in ledgers, and what they cost."""

from __future__ import annotations

import json
import os.path
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from securefl.commands.choices import FILE, NEW_FILE, with_json
from securefl.commands.printing import Group, echo, echo_json, echo_table
from securefl.core.errors import ConfigError, DataError
from securefl.core.reading import near
from securefl.core.text_safety import excerpt
from securefl.storage.texts import MOST_ELEMENTS, elements, read_text

if TYPE_CHECKING:
    from securefl.accounting.curve import Curve
    from securefl.accounting.events import History

_MAGIC = b"SQLite format 3\0"
_DELTAS: Final = (1e-3, 1e-5, 1e-7)
_FALSE_ALARMS: Final = (0.01, 0.05)


def _ledger(context: click.Context, parameter: click.Parameter, path: Path) -> Path:
    """The path, if it is a file that this user may read. Not by click, which knows no remedy."""
    from securefl.storage.inputs import opened, shown

    if os.path.isdir(path):  # False if it cannot be looked at: `opened` says why
        found = sorted(str(one) for one in path.rglob("ledger.sqlite"))[:3]
        there = f" There is {' and '.join(found)}." if found else ""
        raise DataError(f"Expected a ledger's file, got the folder {path}. Name the file in it.{there}")
    with opened(path) as file:
        if file.read(len(_MAGIC)) == _MAGIC:
            return path
    raise DataError(
        f"Expected a ledger, got {shown(path)}, which is no database. Name a ledger.sqlite. If a ledger "
        "stood there, the file is damaged: restore it from the newest backup, or count its budget as spent."
    )


def _of_one_run(path: Path) -> Path:
    """The path. Raises DataError if several runs share the ledger."""
    from securefl.accounting.shared import is_shared

    if is_shared(path):
        raise DataError(
            f"Expected the ledger of one run or party, got {path}, which several runs share. Show it with: "
            f"securefl ledger runs {path}"
        )
    return path


def _require_holder(path: Path, holder: str | None) -> None:
    """Raises ConfigError unless this data holder has releases in the ledger."""
    from securefl.accounting.statements import releases_of

    if holder is not None and holder not in (known := releases_of(path)):
        # Holders of a loop's own ledger are Python literals: client 'ann'.
        some = map(excerpt, sorted(known, key=lambda own: (holder not in own, own))[:3])
        raise ConfigError(
            f"Expected --holder with releases in {path}, such as {' or '.join(some) or 'none yet'}, got "
            f"{excerpt(holder)}{near(holder, known)}. Leave it out to see all."
        )


@click.group(
    cls=Group, epilog="Example:  securefl ledger show runs/demo/private/arms/fedavg-full/seed-7/ledger.sqlite"
)
def ledger() -> None:
    """Show the releases in ledgers, and the epsilon of their composition."""


@ledger.command(epilog="Example:  securefl ledger show ledger.sqlite --holder client-0003")
@click.argument("path", type=FILE, callback=_ledger)
@click.option("--holder", help="Show one data holder only. Each epsilon is of one holder anyway.")
@click.option(
    "--party",
    type=click.Choice(["server", "key-holder", "others"]),
    default="server",
    show_default=True,
    help="The party against which epsilon holds.",
)
@with_json()
def show(path: Path, holder: str | None, party: str, as_json: bool) -> None:
    """Print a table of releases (time, holder, value, unit, event, epsilon after it) and the ledger's head.

    The head is the last link of a hash chain over the releases of all holders. If a release is lost or
    changed, the head differs. To detect that, keep a copy of the head elsewhere.
    """
    from securefl.accounting.statements import statement

    _require_holder(_of_one_run(path), holder)
    found = statement(path, party=party, holder=holder)
    if as_json:
        parts = {"count": found.head.count, "head": found.head.digest.hex(), "releases": found.releases}
        echo_json(parts, 1)
        return
    if not found.releases:
        echo("No releases.")
        return
    names = ("at", "holder", "round", "name", "unit", "event", "state", "epsilon")
    # Holders and names may come from a foreign file: control characters could control the terminal, and a
    # long name would widen every line of the table.
    shown = [[excerpt(str(row[name])) for name in names] for row in found.releases]
    echo_table(names, shown)
    echo(f"head after {found.head.count} entries: {found.head.digest.hex()}")
    # The head is public. The participation of clients in rounds is not.
    echo("The table is for the person at this machine: no epsilon covers who took part when.", err=True)


@ledger.command(epilog="Example:  securefl ledger curve ledger.sqlite --holder client-0003 -o curve.svg")
@click.argument("path", type=FILE, callback=_ledger)
@click.option("--holder", help="Show one data holder only.")
@click.option("-o", "--out", type=NEW_FILE, help="Draw the curves, too: .pdf, .svg or .png.")
@with_json("Print points of the curves as JSON, for each holder and party.")
def curve(path: Path, holder: str | None, out: Path | None, as_json: bool) -> None:
    """Show the whole privacy curve of each data holder against each party, not only its one epsilon.

    A line has the mu of Gaussian differential privacy, the rho of zCDP, epsilon at several deltas, and how
    often the best test misses at 1 % and 5 % of false alarms. Sampling of training steps lowers neither mu
    nor rho. Holders of equal releases share a line. All is of the same composition as the epsilon of `show`.
    The picture has, for each party, the holder who spent most.
    """
    from securefl.accounting.curve import curves
    from securefl.accounting.figures import plain, short
    from securefl.accounting.statements import terms_of
    from securefl.report.paper import require_picture, write_figure
    from securefl.report.privacy_plots import curves as drawn

    if out is not None:
        require_picture(out)
    _require_holder(_of_one_run(path), holder)
    found, delta = curves(path, holder=holder), terms_of(path).delta
    lines: dict[tuple[str, History], tuple[Curve, list[str]]] = {}
    for who, parties in found.items():
        for party, own in parties.items():
            lines.setdefault((party, own.history), (own, []))[1].append(who)
    if out is not None and lines:
        worst: dict[str, Curve] = {}
        for (party, _), (own, _) in lines.items():
            worst[party] = max(worst.get(party, own), own, key=lambda one: one.epsilon(delta))
        write_figure(out, drawn({f"against the {party}": own for party, own in worst.items()}))
    if as_json:
        rows = [
            {"holders": names, "party": party, **_figures(own)} for (party, _), (own, names) in lines.items()
        ]
        echo_json(plain({"delta": delta, "curves": rows}), 1)
        return
    if not lines:
        echo("No releases.")
        return
    deltas = sorted({*_DELTAS, delta}, reverse=True)
    head = ["holder", "party", "mu", "rho", *(f"epsilon at {at:g}" for at in deltas)]
    shown = []
    for (party, _), (own, (first, *others)) in lines.items():
        whose = excerpt(first) + (f" and {len(others)} more" if others else "")
        costs = [own.mu, own.rho, *(own.epsilon(at) for at in deltas)]
        misses = [f"{miss:.1%}" for miss in own.miss(_FALSE_ALARMS)]
        shown.append([whose, party, *map(short, costs), *misses])
    echo_table([*head, *(f"misses at {rate:.0%}" for rate in _FALSE_ALARMS)], shown)
    echo("The table is for the person at this machine: no epsilon covers who took part how often.", err=True)
    if out is not None:
        echo(f"Figure: {out}")


def _figures(own: Curve) -> dict[str, object]:
    """Mu, rho and points of a curve, for scripts."""
    import numpy as np

    epsilons, deltas = (part[::8].tolist() for part in own.points)
    alarms = np.linspace(0, 1, 101)
    trade = {"false_alarm": alarms.tolist(), "miss": own.miss(alarms).tolist()}
    return {"mu": own.mu, "rho": own.rho, "epsilon": epsilons, "delta": deltas, **trade}


@ledger.command(epilog="Example:  securefl ledger runs people.ledger --json")
@click.argument("path", type=FILE, callback=_ledger)
@with_json()
def runs(path: Path, as_json: bool) -> None:
    """Show the epsilon that several runs over the same records have spent together, in their shared ledger.

    A study names such a ledger with `ledger` under [privacy]. Each run is a line: the time of its
    reservation, its study, arm and seed, and the epsilon of all runs up to it. A run is charged once, for
    all releases that it may make.
    """
    from securefl.accounting.figures import counted, plain, short
    from securefl.accounting.shared import SharedRuns, is_shared, runs_of
    from securefl.core.release import PARTIES

    if not is_shared(path):
        raise DataError(
            f"Expected a ledger that several runs share ([privacy] ledger), got {path}. Show the ledger of "
            f"one run or party with: securefl ledger show {path}"
        )
    found = runs_of(path)
    terms = found.terms
    after = [
        {party: SharedRuns(terms=terms, entries=found.entries[:n]).epsilon(party) for party in PARTIES}
        for n in range(1, len(found.entries) + 1)
    ]
    if as_json:
        rows = [
            {"at": entry.at, "run": entry.what, "epsilon": plain(spent)}
            for entry, spent in zip(found.entries, after, strict=True)
        ]
        promise = {"unit": terms.unit, "adjacency": terms.adjacency, "delta": terms.delta}
        said = {**promise, "budget": found.budget, "adversaries": list(terms.adversaries), "runs": rows}
        echo_json(said, 1)
        return
    for entry, spent in zip(found.entries, after, strict=True):
        told = ", ".join(f"{short(value)} against the {party}" for party, value in spent.items())
        echo(f"{excerpt(entry.at)}  {excerpt(entry.what)}: epsilon {told}")
    count, whom = len(found.entries), " and the ".join(terms.adversaries)
    echo(
        f"{counted(count, 'run')}; a budget of epsilon {found.budget:g} at delta "
        f"{terms.delta:g} per {terms.unit} ({terms.adjacency}) holds over all of them together, against "
        f"the {whom}."
    )


@ledger.command(epilog="Example:  securefl ledger epsilon --events events.json --delta 1e-5 --json")
@click.option(
    "--events",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    required=True,
    help="A JSON file of events, as described above.",
)
@click.option("--delta", type=float, required=True, help="The delta of the epsilon.")
@with_json()
def epsilon(events: Path, delta: float, as_json: bool) -> None:
    """Compute the epsilon of a list of events in a JSON file, by privacy loss distributions and by RDP.

    The file is a list of events. A number of rounds is an event with "repeat":

    \b
    {"event": "gaussian", "noise_multiplier": z, "count": n}
    {"event": "poisson_gaussian", "sampling_probability": q, "noise_multiplier": z, "count": n}
    {"event": "non_private"}
    {"repeat": r, "events": [...]}
    """
    from dp_accounting import DpEvent

    from securefl.accounting.composition import composable, compose, rdp_epsilon
    from securefl.accounting.event_list import LARGEST_EVENTS, count_events
    from securefl.accounting.events import History
    from securefl.accounting.figures import plain
    from securefl.accounting.store import require_delta

    require_delta(delta)
    text = read_text(events, LARGEST_EVENTS)
    try:
        # Counted before parsing, because a text of brackets becomes a tree of many times its size.
        if elements(text.encode()) > MOST_ELEMENTS:
            raise ValueError
        listed = json.loads(text)
    # Python's parser raises RecursionError for deep nesting, not ValueError.
    except (ValueError, RecursionError):
        raise DataError(
            f"Expected JSON of at most {MOST_ELEMENTS:,} values in {events}, got other text. Fix the file."
        ) from None
    counted = Counter[DpEvent]()
    count_events(listed, 1, counted)
    history = History.of(counted)
    found = {"epsilon": compose(counted, delta), "rdp_epsilon": rdp_epsilon(history, delta)}
    if history.steps and not history.endless and not composable(history, delta):
        echo(
            "Privacy loss distributions cannot give this epsilon (delta is too small, or epsilon too large "
            "to protect anything): epsilon is the bound by RDP.",
            err=True,
        )
    if as_json:
        echo_json(plain(found))
    else:
        echo(f"epsilon {found['epsilon']:.6g} at delta {delta:g}; by RDP {found['rdp_epsilon']:.6g}")
