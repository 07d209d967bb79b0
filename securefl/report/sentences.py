"""What a finished run says first: the answer, the price of an epsilon, and the table of its arms.

Terminal, pages and notebooks have the same sentences and rows.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from securefl.accounting.figures import in_words
from securefl.core.errors import ConfigError
from securefl.report.pages import number_text
from securefl.report.run_page import ArmSummary
from securefl.report.significance import listed, with_interval


def answer(summary: Sequence[ArmSummary]) -> str:
    """One sentence: the arm with the highest final accuracy, over all arms with a global model if there are
    some, and else over those with personal models. If it is no better than one constant answer, the sentence
    says first that nothing was learnt. Raises ConfigError for an empty summary."""
    if not summary:
        raise ConfigError("Expected at least one arm to report on, got none.")
    kept = [arm for arm in summary if arm.models != "personal"] or list(summary)
    # An unknown accuracy comes after every known one.
    first = max(kept, key=lambda arm: -math.inf if math.isnan(arm.final_accuracy) else arm.final_accuracy)
    models = " with a global model" if len(kept) < len(summary) else ""
    level = [arm.name for arm in kept if _share(arm.final_accuracy) == _share(first.final_accuracy)]
    if len(kept) == 1:
        who = f"{first.name}, the only arm{models}, ended" if models else f"{first.name} ended"
    elif len(level) == len(kept):
        who = f"all {len(kept)} arms{models} ended level,"
    else:
        names = listed(level if len(level) < 4 else [level[0], f"{len(level) - 1} more"])
        who = f"of {len(kept)} arms{models}, {names} ended highest,"
    known = "" if math.isnan(first.final_accuracy) else "an accuracy of "
    noted = " (of personal models: no epsilon covers it)" if first.models == "personal" else ""
    said = f"{who} at {known}{_share(first.final_accuracy)}{noted}"
    if first.no_better:
        said = f"nothing was learnt: {said}, and one constant answer reaches {_share(first.floor)}"
    # Only the first letter: `capitalize` would lower all others, those of names too.
    return f"{said[0].upper()}{said[1:]}."


def privacy_cost(summary: Sequence[ArmSummary], against: Collection[str]) -> str:
    """What a finite epsilon cost in accuracy: the best arm that has one beside the best arm without one.

    against: the parties that an arm's epsilon must be finite against, its study's `adversaries`. Arms with
    personal models and arms without a known final accuracy are left out. Empty unless there are arms of both
    kinds, and the one without an epsilon learnt something.
    """

    def worst(arm: ArmSummary) -> float:
        return max((arm.epsilon[p] for p in against if p in arm.epsilon), default=0)

    known = [a for a in summary if a.models != "personal" and not math.isnan(a.final_accuracy)]
    known.sort(key=lambda arm: -arm.final_accuracy)
    one = next((arm for arm in known if 0 < worst(arm) < math.inf), None)
    bare = [arm for arm in known if worst(arm) == math.inf]
    if one is None or not bare or bare[0].no_better:
        return ""
    other = bare[0]
    points = 100 * (other.final_accuracy - one.final_accuracy)
    price = f"{points:.1f} points of accuracy" if points >= 0.05 else "no accuracy"
    if one.no_better:
        price = "all that was learnt"
    others = f"the best of {len(bare)} arms without one" if len(bare) > 1 else "without one"
    same = one.protocol == other.protocol
    method = "" if same else " Their methods differ too, so the noise alone may have cost more or less."
    return (
        f"A finite epsilon cost {price}: {one.name} ended at {_share(one.final_accuracy)}, at an epsilon of "
        f"{in_words(worst(one))} against the {listed([p for p in against if p in one.epsilon])}, and "
        f"{other.name}, {others}, at {_share(other.final_accuracy)}.{method}"
    )


def rows(summary: Sequence[ArmSummary], others: Sequence[tuple[str, float]] = ()) -> list[list[str]]:
    """The table of the arms: a head, and a row for each arm.

    Its columns are the final accuracy with its interval over the seeds, the rounds to the target if the study
    has one, the megabytes of the run in both directions, and epsilon against each party that learns anything.

    others: names and accuracies of models beside the arms.
    """
    parties = [p for p in summary[0].epsilon if any(arm.epsilon[p] != 0 for arm in summary)]
    arms = [
        {
            "arm": arm.name,
            "accuracy": with_interval(arm.by_seed),
            **({} if arm.target is None else {f"rounds to {arm.target:g}": _rounds(arm)}),
            "MB": number_text(sent)
            if (sent := arm.megabytes_up + arm.megabytes_down) >= 100
            else f"{sent:.3g}",
            **{f"ε {party}": in_words(arm.epsilon[party]).partition(" (")[0] for party in parties},
        }
        for arm in summary
    ]
    head = list(arms[0])
    beside = [[name, number_text(value, 3), *[""] * (len(head) - 2)] for name, value in others]
    return [head, *(list(arm.values()) for arm in arms), *beside]


def _rounds(arm: ArmSummary) -> str:
    if math.isnan(arm.best_accuracy):
        return "–"
    return "never" if arm.rounds_to_target is None else str(arm.rounds_to_target)


def _share(accuracy: float) -> str:
    return "an unknown accuracy" if math.isnan(accuracy) else f"{accuracy:.3f}"
