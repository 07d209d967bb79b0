"""The client's state machine in secure aggregation.

The client begins an attempt, advertises keys, deals shares, sends its masked input, signs the survivors (in
active mode) and answers one request to unmask. The host trains, quantises, adds noise and keeps the ledger.
`phases` maps events to functions of `client_rounds`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from securefl.core.errors import ConfigError, RemoteProtocolError
from securefl.core.machine import Expects, Step
from securefl.core.release import SERVER
from securefl.secagg.client_rounds import ClientState, Finished, Rounds
from securefl.secagg.messages import from_server
from securefl.secagg.phases import CLIENT
from securefl.secagg.policy import Policy


@dataclass(frozen=True, kw_only=True)
class Client(Rounds):
    """The machine of one client in one aggregation.

    Its result is "answered", "abstained", "missed", "complained" (a dealer was bad) or "refused" (by the
    client's record).

    Args:
        agreement: built from this client's own plan and the server's order, never taken from the server.
        channels: the client's keys and its secrets with the other members, for all rounds of a session.
        random: the source of the sample of a quorum, by default the operating system's.
        policy: the client's demands.
        patience: the number of deadlines that may pass in one state before the client gives up.

    Raises:
        ConfigError: if the parameters are weaker than the policy, or the channels are of another session.

    >>> from securefl.secagg import *
    >>> from securefl.sums import Header
    >>> own = [Identity.generate(f"client-{number:04d}") for number in range(3)]
    >>> roster = Roster(tuple(identity.member() for identity in own))
    >>> agreement = Agreement(
    ...     header=Header(session=bytes(32), round=1, attempt=1, stage=0), roster=roster,
    ...     vectors=(Vector(name="update", length=4, bits=32, bound=100),), plan=bytes(32), task=bytes(32),
    ...     parameters=parameters(3, corrupt=0.0, dropout=0.0, mode="active"))
    >>> policy = Policy(mode="active", corrupt=0.0, dropout=0.0)
    >>> channels = Channels(own[0], roster, bytes(32))
    >>> type(Client(agreement=agreement, channels=channels, policy=policy).begin().need.order).__name__
    'Begin'
    """

    policy: Policy
    patience: int = 16

    def __post_init__(self) -> None:
        header = self.agreement.header
        self.policy.check(self.agreement.parameters)
        if self.channels.session != header.session or self.channels.roster != self.agreement.roster:
            raise ConfigError(
                "Expected channels of this session and this roster, got those of another. Make them from the "
                "agreement's roster."
            )

    def begin(self) -> Step[ClientState]:
        return CLIENT.begin(self)

    def expects(self, state: ClientState) -> Expects:
        return Expects(self.agreement.header, from_server(self.agreement))

    def receive(self, state: ClientState, sender: str, message: Any) -> Step[ClientState]:
        """Process a message of the server. A repeated message is ignored.

        Raises RemoteProtocolError if the message is not due yet, lacks a signature, or contradicts an
        earlier message.
        """
        if sender != SERVER:
            raise RemoteProtocolError(
                f"Expected messages from the server, got one from {sender}.", sender=sender, phase="client"
            )
        does = CLIENT.handler(state, type(message), sender=sender, phase="client")
        return Step(state) if does is None else does(self, state, message)

    def provide(self, state: ClientState, answer: Any) -> Step[ClientState]:
        """Process the host's answer to the last need. It is ignored after the client has finished."""
        return Step(state) if isinstance(state, Finished) else CLIENT.answered(state)(self, state, answer)

    def deadline(self, state: ClientState) -> Step[ClientState]:
        """Process a deadline. The client gives up after more than `patience` deadlines in one state."""
        # A client that has answered awaits no message: `answered` is its result already.
        return CLIENT.deadline(self, state, self.patience)
