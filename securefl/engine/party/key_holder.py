"""The key holder: it opens what the plan lets it open, for a server that it only hears."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import ValueSpec
from securefl.algorithm.weighing import require_allowed, require_batches
from securefl.core.acts import Begin, RecordAct
from securefl.core.agreement import Directory, Identity, Member
from securefl.core.errors import ConfigError, CryptoError, LocalProtocolError, RemoteProtocolError
from securefl.core.machine import Machine
from securefl.core.messages import client_name
from securefl.core.release import KEY_HOLDER, SERVER
from securefl.core.wire import Header, encode
from securefl.engine.calls import QueryCall, SumCall, decode_call, last_place
from securefl.engine.drive import Driver
from securefl.engine.observer import Log
from securefl.linear.scheme import LinearScheme
from securefl.mechanisms.registry import require_mechanism
from securefl.storage.own_record import Own, OwnRecord
from securefl.sums.registry import scheme_of
from securefl.sums.scheme import Attempt


class KeyHolderParty:
    """The key holder of one run, from its own copy of the plan.

    Args:
        offers: by name, what clients may be asked for.
        record: where it notes what it opens, before it does.
        scores: the plan's way of scoring, with parameters as everybody has them; None in the clear.
    """

    names = (KEY_HOLDER,)

    def __init__(
        self,
        plan: Plan,
        contributions: Mapping[str, ValueSpec],
        record: OwnRecord,
        *,
        scores: LinearScheme | None = None,
    ) -> None:
        require_mechanism(plan)
        self._plan = plan
        self._contributions = dict(contributions)
        self._record = record
        self._scoring = scores
        self._directory: Directory | None = None
        self._after = (0, 0, -1)
        self.drive: Driver | None = None
        self.log = Log()

    def member(self, session: bytes) -> Member:
        """Its public keys of a session, for the directory."""
        return self._identity(session).member()

    def _identity(self, session: bytes) -> Identity:
        return self._record.identity(session)

    def enter(self, directory: Directory, *, after: int = 0) -> None:
        own = Own(self._identity(directory.session), self._record, directory)
        if directory.key_holder != own.identity.member():
            raise ConfigError("Expected this key holder's own keys in the directory, got others.")
        self._directory, self._after, self.drive = directory, last_place(after), None
        scheme = scheme_of(self._plan)
        self._sums = None if scheme is None else scheme.key_holder(own)
        self._scores = None if self._scoring is None else self._scoring.key_holder(own, self.log.tell)

    def call(self, to: Sequence[str], data: bytes) -> bytes:
        if self._directory is None:
            raise LocalProtocolError("Expected a session that was entered, got a call before any. Enter one.")
        header, call = decode_call(data, self._directory.session, self._after)
        # The place counts as taken only afterwards: a call that is refused must not bar the right one.
        machine, key = self._machine(header, call)
        self._after = header.place()
        self.drive = Driver({KEY_HOLDER: machine}, header, self)
        return key

    def _machine(self, header: Header, call: QueryCall | SumCall) -> tuple[Machine[Any], bytes]:
        try:
            if isinstance(call, SumCall):
                return self._of_sum(header, call)
            asked = call.questions()
            if self._scores is None or asked is None:
                raise RemoteProtocolError(
                    "Expected a call for what a key holder opens, got one for open numbers.", sender=SERVER
                )
            return self._scores.machine(asked, header)
        except (ConfigError, CryptoError) as error:
            raise RemoteProtocolError(
                f"Expected a call of this plan, got another: {error}", sender=SERVER
            ) from None

    def _of_sum(self, header: Header, call: SumCall) -> tuple[Machine[Any], bytes]:
        # Weights, the size of the cohort and `task` are the server's word only. Clients sign all of it, and
        # the machine checks their signatures. What the plan does not allow is refused beforehand.
        sums = call.sums(self._contributions)
        if self._sums is None or len(call.draws) < len(call.members):
            raise RemoteProtocolError("Expected a call for a sum of this plan, got another.", sender=SERVER)
        require_allowed(self._plan, [question.spec for question in sums], call.weights)
        require_batches(self._plan, call.members, call.draws)
        return self._sums.machine(
            Attempt(
                header=header,
                sums=sums,
                initial=call.initial,
                number=call.number,
                again=call.again,
                cohort=tuple(sorted(map(client_name, call.members))),
                weights=call.weights,
                task=call.task,
            )
        )

    def work(self, needs: Sequence[tuple[str, Any]]) -> list[Any]:
        """Acts are on record before anything is opened; the rest carries all it needs."""
        return [
            self._record.record([order])[0] if isinstance(order, Begin | RecordAct) else order.run()
            for _, order in needs
        ]

    def encode(self, outbox: Sequence[tuple[Header, Any]]) -> list[bytes]:
        return [encode(header, body) for header, body in outbox]
