"""Sentences of a report: the answer, the price of an epsilon, who won, by how much, and at what cost."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from securefl.accounting.figures import in_words
from securefl.core.errors import ConfigError
from securefl.report.pages import number_text
from securefl.report.run_page import ArmSummary


def answer(summary: Sequence[ArmSummary]) -> str:
    """One sentence: the arm with the highest final accuracy, over all arms with a global model if there are
    some, and else over those with personal models. Raises ConfigError for an empty summary."""
    if not summary:
        raise ConfigError("Expected at least one arm to report on, got none.")
    kept = [arm for arm in summary if arm.models != "personal"] or list(summary)
    ranked = sorted(kept, key=lambda arm: _standing(arm)[1])
    first = ranked[0]
    models = " with a global model" if len(kept) < len(summary) else ""
    if len(ranked) == 1:
        only = "the only arm" + models if models else ""
        return _sentence([f"{first.name}{', ' + only + ',' if only else ''} ended at {_accuracy(first)}"])
    level = [arm for arm in ranked if _share(arm.final_accuracy) == _share(first.final_accuracy)]
    if len(level) == len(ranked):
        return _sentence([f"all {len(ranked)} arms{models} ended level, at {_accuracy(first)}"])
    names = _listed([arm.name for arm in level])
    return _sentence([f"of {len(ranked)} arms{models}, {names} ended highest, at {_accuracy(first)}"])


def privacy_cost(summary: Sequence[ArmSummary], against: Collection[str]) -> str:
    """What a finite epsilon cost in accuracy: the best arm that has one beside the best arm without one.

    against: the parties that an arm's epsilon must be finite against, its study's `adversaries`. Arms with
    personal models and arms without a known final accuracy are left out. Empty unless there are arms of both
    kinds.
    """
    known = [a for a in summary if a.models != "personal" and not math.isnan(a.final_accuracy) and a.epsilon]
    worst = {arm.name: max((arm.epsilon[p] for p in against if p in arm.epsilon), default=0) for arm in known}
    ranked = sorted(known, key=lambda arm: -arm.final_accuracy)
    covered = [arm for arm in ranked if 0 < worst[arm.name] < math.inf]
    bare = [arm for arm in ranked if worst[arm.name] == math.inf]
    if not covered or not bare:
        return ""
    one, other = covered[0], bare[0]
    points = 100 * (other.final_accuracy - one.final_accuracy)
    price = f"{points:.1f} points of accuracy" if points >= 0.05 else "no accuracy"
    others = f"the best of {len(bare)} arms without one" if len(bare) > 1 else "without one"
    same = one.protocol == other.protocol
    method = "" if same else " Their methods differ too, so the noise alone may have cost more or less."
    return (
        f"A finite epsilon cost {price}: {one.name} ended at {_share(one.final_accuracy)}, at an epsilon of "
        f"{in_words(worst[one.name])} against the {_listed([p for p in against if p in one.epsilon])}, and "
        f"{other.name}, {others}, at {_share(other.final_accuracy)}.{method}"
    )


def sentences(summary: Sequence[ArmSummary], *, subject: str = "fedprof") -> tuple[str, str, str]:
    """Return three sentences: the winning arm, its lead, and its cost in bytes and privacy.

    Only arms of the same aggregation are compared, and only global models with global ones. If there are
    several such groups, each sentence has one clause for each group. The arm that reaches the target accuracy
    first wins. If no arm reaches it, or there is no target, the arm with the highest final accuracy wins.
    subject: the protocol that the study is about. If none of its arms wins, the sentences say so and compare
    its best arm with the winner. If one wins, it is compared with the best arm of another protocol. An arm
    without another one beside it is compared with a constant answer and, if they are known, with the
    observer's own models.
    Raises ConfigError for an empty summary.
    """
    if not summary:
        raise ConfigError("Expected at least one arm to report on, got none.")
    groups: dict[tuple[str, str], list[ArmSummary]] = {}
    for arm in summary:
        groups.setdefault((arm.aggregation, arm.models), []).append(arm)
    both = len({arm.models for arm in summary}) > 1
    races = [
        _Race.of(arms, subject, models if both else "", alone=len(groups) == 1)
        for (_, models), arms in groups.items()
    ]
    return (
        _sentence(_who(race) for race in races),
        _sentence([*(_by_how_much(race) for race in races), *_whose(races)]),
        _sentence(_at_what_cost(race) for race in races),
    )


@dataclass(frozen=True, kw_only=True)
class _Race:
    """The arms of one aggregation, best first, and the two arms that the sentences compare.

    models: "global" or "personal", the kind of the compared models, if the study has both kinds.
    """

    aggregation: str
    models: str
    alone: bool
    """Whether the study has no other group."""
    ranked: tuple[ArmSummary, ...]
    leaders: tuple[ArmSummary, ...]
    pair: tuple[ArmSummary, ArmSummary | None]
    lost: ArmSummary | None
    """The best arm of the study's subject, if it is not among the leaders."""

    @classmethod
    def of(cls, arms: Sequence[ArmSummary], subject: str, models: str, *, alone: bool) -> _Race:
        ranked = tuple(sorted(arms, key=_standing))
        first = ranked[0]
        leaders = tuple(arm for arm in ranked if _level(arm, first))
        # `ranked` has the best first, so this is the subject's best arm.
        ours = next((arm for arm in ranked if arm.protocol.casefold() == subject.casefold()), None)
        lost = ours if ours is not None and ours not in leaders else None
        if lost is not None:
            pair: tuple[ArmSummary, ArmSummary | None] = (lost, first)
        else:
            head = ours or first
            rest = [arm for arm in ranked if arm is not head]
            # Another protocol if there is one. Otherwise the winner would be compared with its own protocol.
            others = [arm for arm in rest if arm.protocol != head.protocol] or rest
            pair = (head, others[0] if others else None)
        return cls(
            aggregation=first.aggregation,
            models=models,
            alone=alone,
            ranked=ranked,
            leaders=leaders,
            pair=pair,
            lost=lost,
        )

    @property
    def words(self) -> str:
        apart = "overall" if self.alone else "without averaging of models"
        words = f"with {self.aggregation} aggregation" if self.aggregation else apart
        return f"{words}, among {self.models} models," if self.models else words

    @property
    def uncovered(self) -> str:
        """A note that no epsilon covers accuracies of personal models; empty if there are none."""
        personal = any(arm.models == "personal" for arm in self.ranked)
        return " (accuracies of personal models: no epsilon covers them)" if personal else ""


def _standing(arm: ArmSummary) -> tuple[float, float]:
    # An arm that never arrived comes after all that did, and an unknown accuracy after every known one.
    rounds = math.inf if arm.rounds_to_target is None else float(arm.rounds_to_target)
    return rounds, math.inf if math.isnan(arm.final_accuracy) else -arm.final_accuracy


def _level(one: ArmSummary, other: ArmSummary) -> bool:
    if one.rounds_to_target is not None or other.rounds_to_target is not None:
        return one.rounds_to_target == other.rounds_to_target
    # As printed: arms that a reader sees with the same number are not said to differ.
    return _share(one.final_accuracy) == _share(other.final_accuracy)


def _sentence(clauses: Iterable[str]) -> str:
    # Only the first letter: `capitalize` would lower all others, those of names too.
    text = "; ".join(clauses) + "."
    return text[0].upper() + text[1:]


def _who(race: _Race) -> str:
    first = race.ranked[0]
    if len(race.ranked) == 1:
        return f"{race.words} only {first.name} ran, and {_result(first)}{race.uncovered}"
    names = _listed([arm.name for arm in race.leaders])
    tied = len(race.leaders) > 1
    if first.rounds_to_target is not None:
        verb = "tied, reaching" if tied else "won, reaching"
        text = (
            f"{race.words} {names} {verb} accuracy {first.target:g} first, at round {first.rounds_to_target}"
        )
    else:
        nobody = "" if first.target is None else f"nobody reached accuracy {first.target:g}, and "
        verb = "ended level" if tied else "ended highest"
        text = f"{race.words} {nobody}{names} {verb}, at {_share(first.final_accuracy)}"
    if race.lost is not None:
        text += f", while {race.lost.name} lost: it {_result(race.lost)}"
    best = min(race.ranked, key=lambda arm: _standing(arm)[1])
    if best not in race.leaders and best.final_accuracy > first.final_accuracy:
        text += f" (the highest final accuracy is that of {best.name}, {_share(best.final_accuracy)})"
    return text + race.uncovered


def _accuracy(arm: ArmSummary) -> str:
    known = not math.isnan(arm.final_accuracy)
    return f"an accuracy of {_share(arm.final_accuracy)}" if known else _share(arm.final_accuracy)


def _result(arm: ArmSummary) -> str:
    if arm.rounds_to_target is not None:
        return f"reached accuracy {arm.target:g} at round {arm.rounds_to_target}"
    missed = "" if arm.target is None else f"never reached accuracy {arm.target:g} and "
    return f"{missed}ended at {_share(arm.final_accuracy)}"


def _by_how_much(race: _Race) -> str:
    one, other = race.pair
    if other is None:
        return f"{race.words} {one.name} {_beside_no_arm(one)}"
    mine, theirs = one.rounds_to_target, other.rounds_to_target
    text = f"{race.words} {one.name} "
    if mine is not None and theirs is not None:
        gap = mine - theirs
        against = f"{abs(gap)} {'more' if gap > 0 else 'fewer'} than" if gap else "as many as"
        text += f"needed {_rounds(mine)} to the target, {against} {other.name}, and "
    elif mine is not None:
        text += f"needed {_rounds(mine)} to the target, which {other.name} never reached, and "
    elif theirs is not None:
        text += f"never reached the target, for which {other.name} needed {_rounds(theirs)}, and "
    return text + _accuracy_gap(one, other)


def _beside_no_arm(one: ArmSummary) -> str:
    """The comparison of an arm that has no other arm beside it."""
    beside = {
        "all records in one place": one.pooled,
        "each client alone": one.alone,
        "one constant answer": one.floor,
    }
    known = {name: accuracy for name, accuracy in beside.items() if not math.isnan(accuracy)}
    if not known or math.isnan(one.final_accuracy):
        best, last = _share(one.best_accuracy), _share(one.final_accuracy)
        if best == last:
            return f"ended at its highest accuracy, {best}"
        return f"reached {best} in its best round, and ended at {last}"
    gaps = []
    for name, accuracy in known.items():
        points = 100 * (one.final_accuracy - accuracy)
        gap = "level with" if abs(points) < 0.05 else f"{abs(points):.1f} points {_side(points)}"
        gaps.append(f"{gap} {name} ({_share(accuracy)})")
    return f"ended {_listed(gaps)}"


def _whose(races: Sequence[_Race]) -> list[str]:
    """A clause on the observer's own models, if an arm is compared with them."""
    firsts = [race.pair[0] for race in races if race.pair[1] is None]
    if all(math.isnan(arm.pooled) and math.isnan(arm.alone) for arm in firsts):
        return []
    return [
        "the models on all records and on one client's are the observer's, and not for publication: no party "
        "has them, and no epsilon covers them"
    ]


def _side(points: float) -> str:
    return "above" if points > 0 else "below"


def _accuracy_gap(one: ArmSummary, other: ArmSummary) -> str:
    shares = f"({_share(one.final_accuracy)} against {_share(other.final_accuracy)} for {other.name})"
    points = 100 * (one.final_accuracy - other.final_accuracy)
    if math.isnan(points):
        return f"cannot be compared in accuracy {shares}"
    # Below what one decimal can show.
    if abs(points) < 0.05:
        return f"ended level in accuracy {shares}"
    return f"ended {abs(points):.1f} points {'higher' if points > 0 else 'lower'} {shares}"


def _at_what_cost(race: _Race) -> str:
    one, other = race.pair
    text = f"{race.words} {_moved(one)}"
    if other is None:
        return f"{text}, at an epsilon of {_epsilons(one)}"
    text += f" ({_ratio(one, other)} {other.name}), at an epsilon of {_epsilons(one)}"
    text += ", like" if one.epsilon == other.epsilon else f", against {_epsilons(other)} in"
    text += f" {other.name}"
    for arm in race.ranked:
        # All arms of the protocol are priced: the cheap one alone would flatter it.
        if arm.protocol == one.protocol and arm not in race.pair:
            text += f"; {_moved(arm)}, at an epsilon of {_epsilons(arm)}"
    return text


def _ratio(one: ArmSummary, other: ArmSummary) -> str:
    mine, theirs = (arm.megabytes_up + arm.megabytes_down for arm in (one, other))
    if not (mine > 0 and theirs > 0):
        return "not comparable with"
    ratio = mine / theirs
    return "about as much as" if 0.95 < ratio < 1.05 else f"{ratio:.2g} times as much as"


def _moved(arm: ArmSummary) -> str:
    up, down = number_text(arm.megabytes_up), number_text(arm.megabytes_down)
    return f"{arm.name} moved {up} MB up and {down} MB down"


def _epsilons(arm: ArmSummary) -> str:
    parts = [f"{in_words(value)} for the {party}" for party, value in arm.epsilon.items()]
    return _listed(parts) if parts else "unknown size"


def _rounds(count: int) -> str:
    return f"{count} round" if count == 1 else f"{count} rounds"


def _share(accuracy: float) -> str:
    return "an unknown accuracy" if math.isnan(accuracy) else f"{accuracy:.3f}"


def _listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
