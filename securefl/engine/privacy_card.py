"""The privacy card: what each party learns under a plan, in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import floor, log10

from securefl.accounting.events import NO_COST
from securefl.accounting.figures import counted
from securefl.algorithm.plan import CLEAR, Plan
from securefl.algorithm.queries import ValueSpec
from securefl.core.release import KEY_HOLDER, SERVER
from securefl.linear.registry import key_holder_learns, left_open, limit
from securefl.mechanisms.agreed import reads_unbound
from securefl.mechanisms.charges import HIDES, Protection, unbounded
from securefl.sums.registry import scheme_of


def learns(plan: Plan, specs: Sequence[ValueSpec], party: str, *, assumptions: bool = True) -> str:
    """What `party` learns of clients that send these values under this plan, as the privacy card says it.

    assumptions: whether the words say what a hidden sum, or a concealed number, is secure against.
    """
    encrypted = [s for s in specs if plan.scores != CLEAR and s.reveals_encrypted]
    match party:
        case "server":
            single = [s for s in specs if s.reduction == "none" or not plan.hidden]
            seen = [_score(plan, s) if s in encrypted else _told(plan, s, _shown(plan, s)) for s in single]
            summed = [
                f"the total over the cohort of {_told(plan, s, _shown(plan, s))}"
                for s in specs
                if s not in single
            ]
            told = ", and ".join([*(["of each client " + ", ".join(seen)] if seen else []), *summed])
            beyond = limit(plan.scores) if encrypted else ""
            if assumptions and beyond:
                told += f" ({beyond})"
            if not summed or not assumptions:
                return told
            return f"{told} ({_held(plan, [s for s in specs if s not in single])})"
        case "key-holder":
            scheme = scheme_of(plan) if any(s.reduction == "sum" for s in specs) else None
            seen = [key_holder_learns(plan.scores)] if encrypted else []
            seen += [scheme.key_holder_learns] if scheme is not None and scheme.key_holder_learns else []
            seen += [noise for s in specs if (noise := Protection(plan, s).mechanism.learns(KEY_HOLDER))]
            return ", and ".join(dict.fromkeys(seen)) or "nothing: it takes no part"
        case _:
            own = "the broadcast models, and each client whether it was selected itself"
            # An order lists its cohort and the draws of each, since every client checks them under its plan.
            hidden = plan.hidden and any(spec.reduction == "sum" for spec in specs)
            return f"{own}, and in a hidden sum who else is asked, with which weight" if hidden else own


def crafts(plan: Plan, spec: ValueSpec) -> bool:
    """Whether a server that crafts the model reads single records from a total of these values.

    All clients sign the same model, so no way of hiding a sum prevents it (Fowl et al. 2022). Only noise on
    what was clipped does, of an epsilon at which a release hides anything (`opens`).
    """
    moved = spec.on_model or spec.depends_on == "trained-state"
    return spec.reduction == "sum" and spec.form != "map" and moved and _permitted(plan, spec).opens(SERVER)


def _permitted(plan: Plan, spec: ValueSpec) -> Protection:
    """The protection of a value, if the plan permits one without noise."""
    return Protection(replace(plan, non_private=(spec.name,)), spec)


def _score(plan: Plan, spec: ValueSpec) -> str:
    """What the server learns of a value that answers linear queries in encrypted form, and how often."""
    often = spec.schedule.most_releases(plan.max_rounds) or 1
    times = f"at most {counted(often, 'time')}"
    # Without the bound, one query reads one entry.
    if spec.spread and not Protection(plan, spec).noised:
        one, all_ = (_percent(left_open(plan.scores, count)) for count in (1, often))
        times += f"; at worst one that is legal reads one entry to {one} of its anchor's unit"
        times += "" if often == 1 else f", {often} on one vector to {all_}"
    return f"{_told(plan, spec, spec.reveals_encrypted)} (one linear function of its vector, {times})"


def _percent(share: float) -> str:
    """A share of 1 in percent, rounded down to one digit that counts."""
    digits = -floor(log10(share)) - 2
    return f"{floor(100 * share * 10**digits) / 10**digits:.{max(0, digits)}f} %"


def _held(plan: Plan, summed: Sequence[ValueSpec]) -> str:
    """What a hidden sum is secure against: collusion, guesses of one client's value, and which server."""
    words = ["no client may collude with it"]
    if plan.corrupt:
        words = [f"up to {100 * plan.corrupt:g} % of a cohort may collude with it"]
    private = [spec for spec in summed if _permitted(plan, spec).charge() != NO_COST]
    if real := [spec for spec in private if spec.form == "real"]:
        error = min(plan.guess_error(spec) for spec in real)
        words.append(
            "if all values have the same standard deviation, a guess of one client's value from one sum errs "
            f"by {floor(100 * error) / 100:g} of it or more"
            + (", and so does another client's guess" if any(plan.tells(spec) for spec in real) else "")
        )
    if others := " and ".join(spec.name for spec in private if spec not in real):
        words.append(
            f"no figure bounds a guess of one client's {others}: a total tells values of few numbers apart, "
            "such as signs or mostly 0"
        )
    if not all(Protection(plan, spec).post_processed for spec in private):
        words.append(
            "an entry that one client alone moves, such as a row of a class or a word that nobody else has, "
            "is its own"
        )
    if plan.fixed_batch is not None:
        words.append(
            f"differences of rounds reveal sums of fixed batches of {plan.fixed_batch}, and no single client"
        )
    elif not all(own.noised and not own.bare for own in (Protection(plan, spec) for spec in summed)):
        words.append("differences of several rounds' sums are not protected")
    if loose := not_held(plan, summed):
        words.append(loose)
    state = any(spec.reads_state == "unbound" for spec in summed)
    if plan.secagg == "semi-honest" and (plan.sum == "masked" or state):
        words.append("a server that breaks the protocol can open one client's value: it must follow it")
    if plan.sum == "ckks":
        words.append("a server that breaks the protocol reads the key holder's key: it must follow it")
    return "; ".join(words)


def not_held(plan: Plan, specs: Sequence[ValueSpec]) -> str:
    """What a party is told of hidden sums whose values may read kept state, with the remedies; "" if none do.

    The card has it, and so have `securefl flower check` and the logs of parties whose code is not ours.
    """
    loose = [spec for spec in specs if reads_unbound(plan, spec)]
    names = " and ".join(spec.name for spec in loose)
    if loose and plan.accepts_kept_state:
        lies = "" if any(spec.reads_state == "repeated" for spec in specs) else " that lies"
        return (
            f"the owner accepted that a server{lies} can open a single client's {names}, which reads state "
            "of earlier queries"
        )
    if not loose:
        return ""
    return (
        f"not held against a server that lies: state that code of the client's own keeps for its {names} "
        f"(noise of an epsilon up to {HIDES:g} a release holds it, or trust in the server)"
    )


def _shown(plan: Plan, spec: ValueSpec) -> str:
    """What the server sees of a value in the clear."""
    return spec.reveals if plan.public_num_examples is None else spec.reveals_public or spec.reveals


def _told(plan: Plan, spec: ValueSpec, reveals: str) -> str:
    """`reveals`, with the protection of the value."""
    protection = _permitted(plan, spec)
    if crafts(plan, spec):
        reveals += ", and single records if it crafts the model"
    if not protection.noised:
        return reveals if spec.training is None else f"{reveals}, trained privately"
    noise = protection.mechanism.learns(SERVER)
    if protection.opens(SERVER) and not unbounded([protection.charge()], (SERVER,)):
        noise += f" that hides next to nothing (an epsilon above {HIDES:g})"
    return f"{reveals}{noise}"
