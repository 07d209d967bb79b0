"""Plans that hide sums, of small cohorts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from securefl.algorithm.plan import Plan


def hidden(plan: Plan, clients: int, **words: Any) -> Plan:
    """This plan, with masked sums over up to so many clients, none of whom has more than half of a sum."""
    usual: dict[str, Any] = {
        "sum": "masked",
        "corrupt": plan.corrupt or 0.0,
        "min_cohort_size": 3,
        "max_cohort_size": clients,
        "min_honest": 1,
        "max_client_weight": 0.5,
    }
    return replace(plan, **(usual | words))


def lawless(plan: Plan, **words: Any) -> Plan:
    """This plan with words that nobody holds against each other, such as those of a server that lies."""
    found = replace(plan)
    for word, value in words.items():
        object.__setattr__(found, word, value)
    return found
