"""The privacy card: who sees what under a plan, in words."""

from __future__ import annotations

from collections.abc import Sequence

from securefl.charges import noised, placement
from securefl.plan import CLEAR, Plan
from securefl.rounds import Sends
from securefl.scores import key_holder_learns
from securefl.sums import way_of


def learns(plan: Plan, sends: Sequence[Sends], party: str) -> str:
    """What `party` sees of clients that send these values under this plan, in words for the privacy card."""
    encrypted = [s for s in sends if plan.scores != CLEAR and s.reveals_encrypted]
    match party:
        case "server":
            single = [s for s in sends if s.how == "each" or not plan.hidden]
            seen = [_told(plan, s, s.reveals_encrypted if s in encrypted else s.reveals) for s in single]
            summed = [
                f"the total over the cohort of {_told(plan, s, s.reveals)}" for s in sends if s not in single
            ]
            told = ", and ".join([*(["of each client " + ", ".join(seen)] if seen else []), *summed])
            return f"{told} ({_colluding(plan)})" if summed else told
        case "key-holder":
            way = way_of(plan) if any(s.how == "sum" for s in sends) else None
            seen = [key_holder_learns(plan)] if encrypted else []
            seen += [way.key_holder_learns] if way is not None and way.key_holder_learns else []
            if any(noised(plan, s) and placement(plan, s) == "key-holder" for s in sends):
                seen.append("the noise that it draws, which it could take off a published total")
            return ", and ".join(dict.fromkeys(seen)) or "nothing: it takes no part"
        case _:
            return "the broadcast models, and each client whether it was selected itself"


def _colluding(plan: Plan) -> str:
    """How many clients may collude with the server before a sum tells more than its total."""
    if not plan.corrupt:
        return "none may collude with it"
    return f"up to {100 * plan.corrupt:g} % of a cohort may collude with it"


def _told(plan: Plan, sends: Sends, reveals: str) -> str:
    """`reveals`, and its protection."""
    if not noised(plan, sends):
        return reveals if sends.training is None else f"{reveals}, trained privately"
    match placement(plan, sends):
        case "local":
            return f"{reveals}, with noise"
        case "distributed" if plan.hidden:
            return f"{reveals}, noise of the honest clients' shares included"
        case "key-holder":
            return f"{reveals}, with the key holder's noise"
        case "distributed":
            return (
                f"{reveals}, with its own share of the noise (a stand-in for secure "
                "aggregation: trusted to sum before it looks)"
            )
        case _:
            return f"{reveals} (trusted to sum them and add the noise before anybody sees the sum)"
