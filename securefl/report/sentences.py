"""Sentences of a report: the answer, and the price of an epsilon."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from securefl.accounting.figures import in_words
from securefl.core.errors import ConfigError
from securefl.report.run_page import ArmSummary


def answer(summary: Sequence[ArmSummary]) -> str:
    """One sentence: the arm with the highest final accuracy, over all arms with a global model if there are
    some, and else over those with personal models. Raises ConfigError for an empty summary."""
    if not summary:
        raise ConfigError("Expected at least one arm to report on, got none.")
    kept = [arm for arm in summary if arm.models != "personal"] or list(summary)
    ranked = sorted(kept, key=_standing)
    first = ranked[0]
    models = " with a global model" if len(kept) < len(summary) else ""
    noted = " (of personal models: no epsilon covers it)" if first.models == "personal" else ""
    if len(ranked) == 1:
        only = "the only arm" + models if models else ""
        return _sentence(
            f"{first.name}{', ' + only + ',' if only else ''} ended at {_accuracy(first)}{noted}"
        )
    level = [arm for arm in ranked if _share(arm.final_accuracy) == _share(first.final_accuracy)]
    if len(level) == len(ranked):
        return _sentence(f"all {len(ranked)} arms{models} ended level, at {_accuracy(first)}{noted}")
    names = _listed([arm.name for arm in level])
    return _sentence(f"of {len(ranked)} arms{models}, {names} ended highest, at {_accuracy(first)}{noted}")


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


def _standing(arm: ArmSummary) -> float:
    # An unknown accuracy comes after every known one.
    return math.inf if math.isnan(arm.final_accuracy) else -arm.final_accuracy


def _sentence(text: str) -> str:
    # Only the first letter: `capitalize` would lower all others, those of names too.
    return f"{text[0].upper()}{text[1:]}."


def _accuracy(arm: ArmSummary) -> str:
    known = not math.isnan(arm.final_accuracy)
    return f"an accuracy of {_share(arm.final_accuracy)}" if known else _share(arm.final_accuracy)


def _share(accuracy: float) -> str:
    return "an unknown accuracy" if math.isnan(accuracy) else f"{accuracy:.3f}"


def _listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
