"""What a client adds to a hidden sum without noise is agreed on by all who sign the sum.

The rule, against a server that lies: what a client adds is a function of its records, of bytes that all
signers of this sum agreed on, and of draws of its own. The agreement binds the plan, the order, the
broadcast, the weights and the cohort of one query. It does not bind client state that earlier queries left,
and the server chose those. So a value that reads such state is refused without noise. PROOF.md beside this
file has the proof. `ValueSpec.reads_state` is the declaration that the rule reads.

A value that takes off again what an earlier sum had of it ("repeated") is refused under a server that follows
the protocol, too: each sum has the difference of two rounds, in which the values of clients that took part
before nearly cancel, and that of a newcomer stays.
"""

from __future__ import annotations

from collections.abc import Sequence

from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import ValueSpec
from securefl.core.errors import ConfigError
from securefl.core.release import SERVER
from securefl.mechanisms.charges import HIDES, Protection


def reads_unbound(plan: Plan, spec: ValueSpec) -> bool:
    """Whether a server as `secagg` describes it may read one client from this hidden sum, by its state.

    False with noise that hides anything of one release from the server (`opens`), whatever state the value
    reads.
    """
    if not plan.hidden or spec.reduction != "sum":
        return False
    loose = ("unbound", "unknown", "repeated") if plan.secagg == "active" else ("repeated",)
    return spec.reads_state in loose and Protection(plan, spec).opens(SERVER)


def require_agreed(plan: Plan, sent: Sequence[ValueSpec]) -> None:
    """Refuse hidden sums that break the rule. Clients and the key holder check by their own plans, too.

    Code that is not ours ("unknown") is not refused, since nobody can tell what it keeps: the privacy card
    says that it is not held.

    Args:
        plan: the checking party's own plan.
        sent: the specs of the values.

    Raises:
        ConfigError: a value reads state that the agreement does not bind, without noise, and the plan does
            not accept that.
    """
    for spec in sent:
        if plan.accepts_kept_state or spec.reads_state == "unknown" or not reads_unbound(plan, spec):
            continue
        bound = spec.bounded_by.get("client", "a bound of its protocol, and noise")
        why = "a server that lies chooses those, and can read one client's value"
        last = 'Or, if the server follows the protocol, set secagg = "semi-honest"; in'
        if spec.reads_state == "repeated":
            why = (
                "each sum has the difference of two rounds, in which even a server that follows the protocol "
                "can read the value of a client that it did not ask before"
            )
            last = "In"
        raise ConfigError(
            f"Expected hidden sums without noise, or with noise of an epsilon above {HIDES:g} a release, to "
            f"add what all clients of a sum agreed on, got {spec.name!r}, which reads state that a client "
            f'keeps from earlier queries: {why}. Add noise with unit = "client" ({bound}). Or accept that '
            "for this arm: accepts_kept_state = true, which stands on its card. "
            f'{last} the open, sum = "clear".'
        )


def require_needed(plan: Plan, sent: Sequence[ValueSpec]) -> None:
    """Raises ConfigError for an acceptance of kept state where no hidden sum needs it."""
    if plan.accepts_kept_state and not any(reads_unbound(plan, spec) for spec in sent):
        raise ConfigError(
            "Expected no accepts_kept_state, got true: no hidden sum of this arm reads kept state that needs "
            "it: without noise, and under a server that may lie. Delete the key."
        )
