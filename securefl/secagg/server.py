"""The server of secure aggregation: closes each phase when everybody answered or at its deadline.

A client that is silent in a phase has dropped from there on. Vectors are added as they arrive, and late ones
are discarded. A bad message costs its sender its place. A proof against a dealer ends the attempt with the
dealer's name.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from securefl.core.errors import CryptoError, LocalProtocolError, RemoteProtocolError
from securefl.core.grown import Grown
from securefl.core.machine import Expects, Step
from securefl.secagg import server_opening as opening
from securefl.secagg import server_rounds as rounds
from securefl.secagg.agreement import Agreement
from securefl.secagg.checks import ADVERTISE, CONSISTENCY, MASK, SHARE, UNMASK
from securefl.secagg.messages import (
    Advertise,
    Complaint,
    Consistent,
    MaskedInput,
    Shares,
    Unmask,
    from_clients,
)
from securefl.secagg.server_states import (
    Advertising,
    Agreeing,
    Closing,
    Opening,
    ServerState,
    Sharing,
    Summing,
    Working,
)
from securefl.secagg.unmasking import Aborted, Summed

_DUE: Final = {Advertise: 0, Shares: 1, Complaint: 2, MaskedInput: 2, Consistent: 3, Unmask: 4}


@dataclass(frozen=True, kw_only=True)
class Server:
    """The server of one aggregation. Its result is `Summed` or `Aborted`.

    `patience` is how many deadlines a phase lets pass: 0 for an engine that starts its clock with each phase.
    An engine whose clock runs through needs 1, so that no phase is cut short.
    """

    agreement: Agreement
    patience: int = 1

    def begin(self) -> Step[ServerState]:
        """Wait for advertisements. Every client begins by itself."""
        return Step(Advertising(Grown()))

    def expects(self, state: ServerState) -> Expects:
        return Expects(self.agreement.header, from_clients(self.agreement))

    def receive(self, state: ServerState, sender: str, message: Any) -> Step[ServerState]:
        """Take in a client's message.

        A message that came before, or comes late, is ignored. RemoteProtocolError for one that is not due or
        fails a check: it costs its sender the place in the attempt.
        """
        number = self.agreement.roster.numbers.get(sender)
        if number is None:
            raise RemoteProtocolError(
                f"Expected a member of the pinned roster, got {sender}.", sender=sender, phase="server"
            )
        try:
            match state, message:
                case Advertising(), Advertise():
                    return rounds.advertised(self.agreement, state, number, message)
                case Sharing(), Shares():
                    return rounds.shared(self.agreement, state, number, message)
                case Summing(), Complaint():
                    return rounds.complained(self.agreement, state, number, message)
                case Summing(), MaskedInput():
                    return rounds.masked(self.agreement, state, number, message)
                case Agreeing(), Consistent():
                    return opening.signed(self.agreement, state, number, message)
                case Opening(), Unmask():
                    return opening.opened(self.agreement, state, number, message)
        # Checks know what failed. Whose fault it is only the sender of the message says.
        except CryptoError as error:
            raise RemoteProtocolError(str(error), sender=sender, phase=_phase(state)) from None
        # No case fits what is doubled, late or early. The first two harm nobody.
        if _DUE[type(message)] > state.phase:
            raise RemoteProtocolError(
                f"Expected a message of phase {_phase(state)!r}, got {type(message).__name__}, not due yet.",
                sender=sender,
                phase=_phase(state),
            )
        return Step(state)

    def provide(self, state: ServerState, answer: Summed | Aborted) -> Step[ServerState]:
        """Take in what `Unmasking.run` returned."""
        if not isinstance(state, Working):
            raise LocalProtocolError(
                f"Expected an answer only to a need, got one in {type(state).__name__}. Provide what a step "
                "asked for."
            )
        return Step(Closing(), result=answer)

    def deadline(self, state: ServerState) -> Step[ServerState]:
        """Go on with the clients that answered, or abort with the reason."""
        if isinstance(state, Working | Closing):
            return Step(state)
        if state.waited < self.patience:
            return Step(replace(state, waited=state.waited + 1))
        match state:
            case Advertising():
                return rounds.close_roster(self.agreement, state)
            case Sharing():
                return rounds.close_dealing(self.agreement, state)
            case Summing():
                return rounds.close_sums(self.agreement, state)
            case Agreeing():
                return opening.close_signatures(self.agreement, state)
            case Opening():
                return opening.close_shares(self.agreement, state)


def _phase(state: ServerState) -> str:
    return (ADVERTISE, SHARE, MASK, CONSISTENCY, UNMASK, "unmasking", "closed")[state.phase]
