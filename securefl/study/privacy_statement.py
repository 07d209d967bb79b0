"""The privacy statement of a finished run, as a paper needs it. Its figures come from the run's ledgers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from operator import or_
from pathlib import Path

from securefl.accounting.curve import Curve, against, beside_epsilon
from securefl.accounting.events import History
from securefl.accounting.figures import counted, in_words
from securefl.accounting.statements import releases_of, terms_of
from securefl.core.errors import ConfigError
from securefl.core.release import PARTIES, Charge
from securefl.mechanisms.registry import legend
from securefl.report.latex import escaped
from securefl.report.run_page import TESTED
from securefl.report.significance import listed
from securefl.study.accounted import choice_of
from securefl.study.arm import LEDGER, arm_folder
from securefl.study.config import Arm, Study
from securefl.study.finished import Finished, finished_run
from securefl.study.folder import study_of


def statements(folder: Path) -> dict[str, dict[str, list[str]]]:
    """For each arm of a finished run, the sentences of its statement by topic. The folder is only read.

    Raises ConfigError without a finished run or its ledgers, and DataError for a damaged file.
    """
    run, study = finished_run(folder, str(folder)), study_of(folder)
    return {arm.name: dict(_topics(run, study, arm)) for arm in study.arms}


def _ledgers(folder: Path, study: Study, arm: Arm) -> list[Path]:
    """The ledgers of an arm, one for each seed. Raises ConfigError if one is not in the folder."""
    paths = [arm_folder(folder, arm, seed) / LEDGER for seed in study.study.seeds]
    if missing := [path for path in paths if not path.is_file()]:
        raise ConfigError(
            f"Expected the ledgers of the run in {folder}, got no {missing[0]}. Name the run's own folder, "
            "on its machine. Parties on machines of their own have their own: securefl ledger show."
        )
    return paths


def _topics(run: Finished, study: Study, arm: Arm) -> Iterator[tuple[str, list[str]]]:
    ledgers = _ledgers(run.folder, study, arm)
    terms, seeds = terms_of(ledgers[0]), counted(len(ledgers), "seed")
    holders = [own for path in ledgers for own in releases_of(path).values()]
    # Of each value under each charge, the most releases of one holder.
    most = reduce(or_, holders, Counter[tuple[str, Charge]]())
    shown = terms.adversaries or PARTIES
    history = History.of({charge.by_party()[party]: 1 for _, charge in most for party in shown})
    rates = sorted({rate for rate, _ in history.steps})
    units = {"record": "One record of a client.", "client": "One client, with all its records."}
    yield "Unit", [units[terms.unit]]
    yield "Adjacency", [f"Neighbouring data differ in one {terms.unit} ({terms.adjacency})."]
    yield "Delta", [f"δ = {terms.delta:g}."]
    reason = run.infinite_reason.get(arm.name)
    worst = {party: _worst(holders, party, terms.delta) for party in PARTIES}
    choice = choice_of(run.folder)
    own_epsilons = {party: own.epsilon(terms.delta) for party, own in worst.items()}
    epsilons = own_epsilons if choice is None else choice.epsilon
    claimed = f"It is claimed against {listed([f'the {own}' for own in terms.adversaries] or ['nobody'])}."
    against_each = (f"ε = {in_words(epsilon)} against the {party}." for party, epsilon in epsilons.items())
    yield "Epsilon", [*against_each, claimed, *([f"It is not finite: {reason}."] if reason else [])]
    said = ((party, beside_epsilon(own)) for party, own in worst.items())
    # Of a choice only one point of its curve is known.
    if choice is None and (curves := [f"Against the {party}: {words}." for party, words in said if words]):
        yield "Curve", curves
    mechanisms = (
        f"{name}: {_in_words(charge, shown)}, {counted(count, 'time')} at most."
        for (name, charge), count in most.items()
    )
    noise = f"Noise of values: {legend(study.privacy.noise)}."
    yield "Mechanism", [*mechanisms, noise, *run.over_rounds.get(arm.name, ())]
    enters = "record enters a step of training"
    clients = "No sampling of clients is counted: ε holds for a client that takes part whenever it is asked."
    if rates and terms.unit == "client":
        enters = "client takes part in a sum"
        clients = "Clients draw for themselves. The server learns of draws, and no other party, times apart."
    sampling = (
        f"Each {enters} with probability {rate:g}, independently, and ε counts this amplification."
        for rate in rates
    )
    yield "Sampling", [*sampling, clients]
    exact = "Gaussian mechanisms compose exactly."
    bound = "Sampled steps compose by an upper bound from privacy loss distributions."
    together = (
        "ε is of all releases of one client in a run together, the largest over "
        f"{counted(len(holders) // len(ledgers), 'client')} and {seeds}. Each seed is a run by itself."
    )
    if choice is not None:
        together = "ε is of the choice among a random number of runs, of which nothing but this one is seen."
    yield "Composition", [together, exact, *([bound] if rates else [])]
    yield "Trust", list(_trust(run, study, arm, epsilons))
    yield "Not covered", list(_uncovered(run, study))


def _worst(holders: Sequence[Counter[tuple[str, Charge]]], party: str, delta: float) -> Curve:
    """The curve of the holder with the largest epsilon against a party."""
    found = (against(party, own) for own in holders)
    return max(found, key=lambda own: own.epsilon(delta), default=Curve(History()))


def _trust(run: Finished, study: Study, arm: Arm, epsilons: Mapping[str, float]) -> Iterator[str]:
    privacy = study.privacy
    for row in run.summary.get("privacy_card", []):
        if arm.name in row["arms"]:
            yield f"The {row['party']}: {row['learns']}."
    # A party that learns nothing of records needs no trust.
    if trusted := [party for party in PARTIES if party not in privacy.adversaries and epsilons[party]]:
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


def _in_words(charge: Charge, parties: Sequence[str]) -> str:
    """The mechanisms of a charge against these parties."""
    found = []
    for party in parties:
        history = History.of({charge.by_party()[party]: 1})
        found += ["no noise"] if history.endless else []
        if history.mu_squared:
            z = history.mu_squared**-0.5
            found.append(f"Gaussian mechanism, standard deviation {z:.4g} times the L2 sensitivity")
        found += [
            f"{count} steps of the Poisson-sampled Gaussian mechanism, noise multiplier {z:.4g}, "
            f"sampling rate {rate:g}"
            for (rate, z), count in history.steps.items()
        ]
    return ", and ".join(dict.fromkeys(found)) or "nothing that depends on records"


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
