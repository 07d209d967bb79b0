"""A client of secure aggregation.

It begins an attempt, advertises, deals shares, sends its masked input, signs the survivors (in active mode)
and answers one request to unmask. The host trains, quantises, adds noise and keeps the ledger. `phases` has
which event does what, `client_rounds` what the client does then.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from securefl.core.errors import ConfigError, LocalProtocolError, RemoteProtocolError
from securefl.core.machine import Expects, Step
from securefl.core.release import SERVER
from securefl.secagg import checks
from securefl.secagg.client_rounds import ClientState, Finished, Rounds
from securefl.secagg.messages import from_server
from securefl.secagg.phases import CLIENT, DEADLINE, NotDue
from securefl.secagg.policy import Policy


@dataclass(frozen=True, kw_only=True)
class Client(Rounds):
    """A client of one aggregation.

    Args:
        agreement: from this client's own configuration and the order it was given, not from the server.
        channels: its keys and its secrets with the others, kept over the rounds of a session.
        policy: what it insists on. With weaker parameters it does not begin (ConfigError).
        patience: deadlines that may pass in one state before it gives up.

    Results: "answered", "abstained", "missed", "complained" (a dealer was bad), "refused" (on record).
    """

    policy: Policy
    patience: int = 16

    def __post_init__(self) -> None:
        header = self.agreement.header
        self.policy.check(self.agreement.parameters)
        if self.channels.session != header.session or self.channels.roster != self.agreement.roster:
            raise ConfigError("Expected channels of this session and this roster.")

    def begin(self) -> Step[ClientState]:
        return CLIENT.begin(self)

    def expects(self, state: ClientState) -> Expects:
        return Expects(self.agreement.header, from_server(self.agreement))

    def receive(self, state: ClientState, sender: str, message: Any) -> Step[ClientState]:
        """Take in a message of the server.

        A message that came before is ignored. RemoteProtocolError for one that is not due, not signed, or
        contradicts what was shown before.
        """
        if sender != SERVER:
            raise RemoteProtocolError(
                f"Expected messages from the server, got one from {sender}.", sender=sender, phase="client"
            )
        try:
            does = CLIENT.handler(state, type(message))
        except NotDue:
            raise checks.refusal(
                "client", f"Expected {CLIENT.due(state)}, got {type(message).__name__}, not due yet."
            ) from None
        return Step(state) if does is None else does(self, state, message)

    def provide(self, state: ClientState, answer: Any) -> Step[ClientState]:
        """Take in the host's answer to the last need. It is ignored once the client is out."""
        if isinstance(state, Finished):
            return Step(state)
        does = CLIENT.answered(state)
        if does is None:
            raise LocalProtocolError(
                f"Expected an answer only to a need, got one in {type(state).__name__}. Provide what a step "
                "asked for."
            )
        return does(self, state, answer)

    def deadline(self, state: ClientState) -> Step[ClientState]:
        """A deadline passed. The client gives up once more than `patience` passed in one state."""
        # An answered client awaits nothing more, and cannot miss it: `answered` is its result already.
        does = CLIENT.handler(state, DEADLINE)
        if does is None:
            return Step(state)
        if state.waited < self.patience:
            return Step(replace(state, waited=state.waited + 1))
        return does(self, state)
