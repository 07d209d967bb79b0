"""The key holder party: it opens only those sums and scores that its own copy of the plan allows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import ValueSpec
from securefl.algorithm.weighing import require_allowed, require_batches
from securefl.core.agreement import Directory
from securefl.core.errors import ConfigError, CryptoError, LocalProtocolError
from securefl.core.machine import Machine
from securefl.core.release import KEY_HOLDER
from securefl.core.wire import Header
from securefl.engine.calls import QueryCall, SumCall, by_server, decode_call, last_place
from securefl.engine.drive import Driver
from securefl.engine.party.recorded import RecordedParty
from securefl.linear.scheme import LinearScheme
from securefl.mechanisms.agreed import require_agreed
from securefl.mechanisms.registry import require_mechanism
from securefl.storage.own_record import OwnRecord
from securefl.sums.registry import scheme_of


class KeyHolderParty(RecordedParty):
    """The key holder of one run, from its own copy of the plan.

    Args:
        contributions: the specs of the values that clients may be asked for, by name.
        record: the durable record of its openings. Each is written before it is opened.
        scores: the plan's linear scheme, with the parameters that all parties have; None if numbers are open.
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
        super().__init__(record)
        require_mechanism(plan)
        self._plan = plan
        self._contributions = dict(contributions)
        self._scoring = scores
        self._directory: Directory | None = None
        self._after = last_place(0)
        self.drive: Driver | None = None

    def enter(self, directory: Directory, *, after: int = 0) -> None:
        own = self.own(directory, directory.key_holder)
        self._directory, self._after, self.drive = directory, last_place(after), None
        scheme = scheme_of(self._plan)
        self._sums = None if scheme is None else scheme.key_holder(own)
        self._scores = None if self._scoring is None else self._scoring.key_holder(own, self.log.report)

    def call(self, to: Sequence[str], data: bytes) -> bytes:
        if self._directory is None:
            raise LocalProtocolError("Expected a session that was entered, got a call before any. Enter one.")
        header, call = decode_call(data, self._directory.session, self._after)
        # The place counts as used only after this: a refused call must not block the valid one.
        machine, key = self._machine(header, call)
        self._after = header.place()
        self.drive = Driver({KEY_HOLDER: machine}, header, self)
        return key

    def _machine(self, header: Header, call: QueryCall | SumCall) -> tuple[Machine[Any], bytes]:
        try:
            if isinstance(call, SumCall):
                return self._of_sum(header, call)
            if self._scores is None or call.asked is None:
                raise by_server("Expected a call for encrypted numbers, got one for open numbers.")
            return self._scores.machine(call.asked, header)
        except (ConfigError, CryptoError) as error:
            raise by_server(f"Expected a call of this plan, got one that it refuses: {error}") from None

    def _of_sum(self, header: Header, call: SumCall) -> tuple[Machine[Any], bytes]:
        # Only the server states weights, the cohort's size and `task`. Clients sign all of them, and the
        # machine checks the signatures. Weights, batches and values that read kept state, which the plan does
        # not allow, are refused here: each honest client refuses them, but clients that collude sign any.
        sums = call.sums(self._contributions)
        if self._sums is None or call.ordered < len(call.called):
            raise by_server(
                f"Expected a call for a hidden sum over at most {call.ordered} clients, got one for "
                f"{len(call.called)} under a plan with sum = {self._plan.sum!r}."
            )
        specs = [wanted.spec for wanted in sums]
        require_agreed(self._plan, specs)
        require_allowed(self._plan, specs, call.weights)
        require_batches(self._plan, call.called, call.weights.draws)
        return self._sums.machine(call.attempt(header, sums))
