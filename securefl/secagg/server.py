"""The server's state machine in secure aggregation.

The server closes each phase when all clients have answered, or at the deadline. A client that is silent in a
phase counts as dropped from then on. The server adds vectors as they arrive, and discards late ones. A client
whose message fails a check loses its place. If a dealer is proven bad, the attempt ends and names it.
`phases` maps events to functions of `server_rounds`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from securefl.core.errors import CryptoError, RemoteProtocolError
from securefl.core.machine import Expects, Step
from securefl.secagg.agreement import Agreement
from securefl.secagg.messages import from_clients
from securefl.secagg.phases import SERVER
from securefl.secagg.server_rounds import Closing, ServerState, Working
from securefl.secagg.unmasking import Aborted, Summed


@dataclass(frozen=True, kw_only=True)
class Server:
    """The machine of the server in one aggregation. Its result is `Summed` or `Aborted`. Raises nothing.

    Attributes:
        agreement: the agreement of this attempt.
        patience: the number of deadlines that a phase lets pass. It is 0 for an engine that starts its clock
            with each phase. An engine with one running clock needs 1, so that no phase is cut short.

    >>> from securefl.secagg import *
    >>> from securefl.sums import Header
    >>> members = tuple(Identity.generate(f"client-{number:04d}").member() for number in range(3))
    >>> agreement = Agreement(
    ...     header=Header(session=bytes(32), round=1, attempt=1, stage=0), roster=Roster(members),
    ...     vectors=(Vector(name="update", length=4, bits=32, bound=100),), plan=bytes(32), task=bytes(32),
    ...     parameters=parameters(3, corrupt=0.0, dropout=0.0, mode="active"))
    >>> Server(agreement=agreement).begin().state.phase
    'advertise'
    """

    agreement: Agreement
    patience: int = 1

    def begin(self) -> Step[ServerState]:
        return SERVER.begin(self.agreement)

    def expects(self, state: ServerState) -> Expects:
        return Expects(self.agreement.header, from_clients(self.agreement))

    def receive(self, state: ServerState, sender: str, message: Any) -> Step[ServerState]:
        """Process a client's message. A repeated or late message is ignored.

        Raises RemoteProtocolError if the message is not due yet or fails a check. Its sender then loses its
        place in the attempt.
        """
        number = self.agreement.roster.numbers.get(sender)
        if number is None:
            raise RemoteProtocolError(
                f"Expected a member of the pinned roster, got {sender}.", sender=sender, phase="server"
            )
        does = SERVER.handler(state, type(message), sender=sender, phase=state.phase)
        if does is None:
            return Step(state)
        assert not isinstance(state, Working | Closing)  # no row of theirs has a message
        try:
            return Step(state) if state.heard(number) else does(self.agreement, state, number, message)
        # The checks do not know the sender, so its name is added here.
        except CryptoError as error:
            raise RemoteProtocolError(str(error), sender=sender, phase=state.phase) from None

    def provide(self, state: ServerState, answer: Summed | Aborted) -> Step[ServerState]:
        """Process the result of `Unmasking.run`."""
        return SERVER.answered(state)(self.agreement, state, answer)

    def deadline(self, state: ServerState) -> Step[ServerState]:
        """Continue with the clients that answered, or abort with the reason."""
        return SERVER.deadline(self.agreement, state, self.patience)
