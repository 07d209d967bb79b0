"""The privacy statement of a finished run, as a paper needs it. Its figures come from the run's ledgers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dp_accounting import DpEvent

from securefl.accounting.composition import compose
from securefl.accounting.events import dump_event
from securefl.accounting.figures import in_words
from securefl.accounting.statements import releases_of, terms_of
from securefl.accounting.store import Terms
from securefl.core.errors import ConfigError
from securefl.core.release import PARTIES
from securefl.mechanisms.registry import legend
from securefl.report.latex import escaped
from securefl.report.run_page import TESTED
from securefl.study.arm import LEDGER, arm_folder
from securefl.study.comparison import Finished, finished_run
from securefl.study.config import Arm, Study
from securefl.study.folder import study_of


@dataclass(frozen=True, kw_only=True)
class Spent:
    """The contents of an arm's ledgers, one for each seed.

    epsilon: by party, the largest of a data holder under any seed. releases: by value and event, the most of
    one holder, against the parties of `adversaries` (or all, if it names none). holders: their number.
    """

    terms: Terms
    epsilon: Mapping[str, float]
    releases: Mapping[tuple[str, DpEvent], int]
    holders: int


def statements(folder: Path) -> dict[str, dict[str, list[str]]]:
    """For each arm of a finished run, the sentences of its statement by topic. The folder is only read.

    Raises ConfigError without a finished run or its ledgers, and DataError for a damaged file.
    """
    run, study = finished_run(folder, str(folder)), study_of(folder)
    return {arm.name: dict(_topics(run, study, arm, spent(folder, study, arm))) for arm in study.arms}


def spent(folder: Path, study: Study, arm: Arm) -> Spent:
    """The contents of an arm's ledgers. Raises ConfigError if one is not in the folder."""
    paths = [arm_folder(folder, arm, seed) / LEDGER for seed in study.study.seeds]
    if missing := [path for path in paths if not path.is_file()]:
        raise ConfigError(
            f"Expected the ledgers of the run in {folder}, got no {missing[0]}. Name the run's own "
            "folder, on its machine. Parties on machines of their own have their own: securefl ledger show."
        )
    terms = terms_of(paths[0])
    histories = [own for path in paths for own in releases_of(path).values()]
    epsilon = dict.fromkeys(PARTIES, 0.0)
    releases = Counter[tuple[str, DpEvent]]()
    for own in histories:
        for party in PARTIES:
            events = Counter[tuple[str, DpEvent]]()
            for (name, charge), count in own.items():
                events[name, charge.by_party()[party]] += count
            alone = Counter[DpEvent]()
            for (_, event), count in events.items():
                alone[event] += count
            epsilon[party] = max(epsilon[party], compose(alone, terms.delta))
            if party in (terms.adversaries or PARTIES):
                releases |= events
    return Spent(terms=terms, epsilon=epsilon, releases=releases, holders=len(histories) // len(paths))


def _topics(run: Finished, study: Study, arm: Arm, own: Spent) -> Iterator[tuple[str, list[str]]]:
    terms, privacy = own.terms, study.privacy
    events = [dump_event(event) for _, event in own.releases]
    yield (
        "Unit",
        ["One record of a client." if terms.unit == "record" else "One client, with all its records."],
    )
    yield "Adjacency", [f"Neighbouring data differ in one {terms.unit} ({terms.adjacency})."]
    yield "Delta", [f"δ = {terms.delta:g}."]
    reason = run.infinite_reason.get(arm.name, "")
    yield (
        "Epsilon",
        [
            *(f"ε = {in_words(value)} against the {party}." for party, value in own.epsilon.items()),
            f"It is claimed against the {' and the '.join(terms.adversaries)}."
            if terms.adversaries
            else "It is claimed against nobody.",
            *([f"It is not finite: {reason}."] if reason else []),
        ],
    )
    yield (
        "Mechanism",
        [
            *(
                f"{name}: {_in_words(dump_event(event))}, {count} time{'' if count == 1 else 's'} at most."
                for (name, event), count in own.releases.items()
            ),
            f"Noise of values: {legend(privacy.noise)}.",
        ],
    )
    rates = sorted(
        {part["sampling_probability"] for part in _parts(events) if "sampling_probability" in part}
    )
    yield (
        "Sampling",
        [
            f"Each record enters a step of training with probability {rate:g}, independently, and ε counts "
            "this amplification."
            for rate in rates
        ]
        + ["No sampling of clients is counted: ε holds for a client that takes part whenever it is asked."],
    )
    seeds = len(study.study.seeds)
    yield (
        "Composition",
        [
            f"ε is of all releases of one client in a run together, the largest over {own.holders} clients "
            f"and {seeds} seed{'' if seeds == 1 else 's'}. Each seed is a run by itself.",
            "Sampled steps compose by an upper bound from privacy loss distributions, and Gaussians exactly."
            if rates
            else "Gaussian mechanisms compose exactly.",
        ],
    )
    yield "Trust", list(_trust(run, study, arm))
    yield "Not covered", list(_uncovered(run, study))


def _trust(run: Finished, study: Study, arm: Arm) -> Iterator[str]:
    privacy = study.privacy
    for row in run.summary.get("privacy_card", []):
        if arm.name in row["arms"]:
            yield f"The {row['party']}: {row['learns']}."
    if trusted := [party for party in PARTIES if party not in privacy.adversaries]:
        yield f"No ε is claimed against: {', '.join(trusted)}. The statement trusts them."
    if privacy.dropout is not None:
        yield (
            f"At most {100 * privacy.dropout:g} % of a cohort drop out, and "
            f"{100 * (privacy.corrupt or 0.0):g} % collude with the server."
        )


def _uncovered(run: Finished, study: Study) -> Iterator[str]:
    yield str(run.summary.get("accounting", ""))
    yield TESTED
    if study.privacy.non_private:
        yield f"Values that may leave without noise: {', '.join(study.privacy.non_private)}."
    yield from run.summary.get("outside", [])


def _parts(events: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    for event in events:
        yield from _parts(event["events"]) if "events" in event else [event]


def _in_words(event: Mapping[str, Any]) -> str:
    """A stored event as its mechanism."""
    match event:
        case {"event": "gaussian", "noise_multiplier": z}:
            return f"Gaussian mechanism, standard deviation {z:.4g} times the L2 sensitivity"
        case {"event": "poisson_gaussian", "noise_multiplier": z, "sampling_probability": q, "count": count}:
            return (
                f"{count} steps of the Poisson-sampled Gaussian mechanism (DP-SGD), noise multiplier "
                f"{z:.4g}, sampling rate {q:g}"
            )
        case {"event": "composed", "events": parts}:
            return ", and ".join(map(_in_words, parts))
        case {"event": "non_private"}:
            return "no noise"
    return "nothing that depends on records"


def as_text(found: Mapping[str, Mapping[str, Sequence[str]]]) -> str:
    """The statements as text: a paragraph for each arm, a line for each topic."""
    arms = [
        "\n".join([f"Privacy of {arm}", *(f"{topic}: {' '.join(said)}" for topic, said in topics.items())])
        for arm, topics in found.items()
    ]
    return "\n\n".join(arms) + "\n"


def as_latex(found: Mapping[str, Mapping[str, Sequence[str]]]) -> str:
    """The statements in LaTeX: a paragraph with a list of its topics for each arm."""
    lines = []
    for arm, topics in found.items():
        lines += [rf"\paragraph{{Privacy of {escaped(arm)}}}", r"\begin{description}"]
        lines += [rf"\item[{topic}] {escaped(' '.join(said))}" for topic, said in topics.items()]
        lines.append(r"\end{description}")
    return "\n".join(lines) + "\n"
