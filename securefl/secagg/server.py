"""The server of secure aggregation: closes each phase when everybody answered or at its deadline.

A client that is silent in a phase has dropped from there on. Vectors are added as they arrive, and late ones
are discarded. A bad message costs its sender its place. A proof against a dealer ends the attempt with the
dealer's name. `phases` has which event does what, `server_rounds` what the server does then.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from securefl.core.errors import CryptoError, LocalProtocolError, RemoteProtocolError
from securefl.core.machine import Expects, Step
from securefl.secagg.agreement import Agreement
from securefl.secagg.messages import from_clients
from securefl.secagg.phases import DEADLINE, SERVER, NotDue
from securefl.secagg.server_rounds import Closing, ServerState, Working
from securefl.secagg.unmasking import Aborted, Summed


@dataclass(frozen=True, kw_only=True)
class Server:
    """The server of one aggregation. Its result is `Summed` or `Aborted`.

    `patience` is how many deadlines a phase lets pass: 0 for an engine that starts its clock with each phase.
    An engine whose clock runs through needs 1, so that no phase is cut short.
    """

    agreement: Agreement
    patience: int = 1

    def begin(self) -> Step[ServerState]:
        return SERVER.begin(self.agreement)

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
            does = SERVER.handler(state, type(message))
            if does is None:
                return Step(state)
            assert not isinstance(state, Working | Closing)  # no row of theirs has a message
            return Step(state) if state.heard(number) else does(self.agreement, state, number, message)
        except NotDue:
            raise RemoteProtocolError(
                f"Expected a message of phase {state.phase!r}, got {type(message).__name__}, not due yet.",
                sender=sender,
                phase=state.phase,
            ) from None
        # Checks know what failed. Whose fault it is only the sender of the message says.
        except CryptoError as error:
            raise RemoteProtocolError(str(error), sender=sender, phase=state.phase) from None

    def provide(self, state: ServerState, answer: Summed | Aborted) -> Step[ServerState]:
        """Take in what `Unmasking.run` returned."""
        does = SERVER.answered(state)
        if does is None:
            raise LocalProtocolError(
                f"Expected an answer only to a need, got one in {type(state).__name__}. Provide what a step "
                "asked for."
            )
        return does(self.agreement, state, answer)

    def deadline(self, state: ServerState) -> Step[ServerState]:
        """Go on with the clients that answered, or abort with the reason."""
        does = SERVER.handler(state, DEADLINE)
        if does is None:
            return Step(state)
        assert not isinstance(state, Working | Closing)  # no row of theirs has a deadline
        if state.waited < self.patience:
            return Step(replace(state, waited=state.waited + 1))
        return does(self.agreement, state)
