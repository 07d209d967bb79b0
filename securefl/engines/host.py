"""What surrounds the machines of an in-process study: records, ledger, keys, and work in waves.

`ask` runs one Ask as an exchange; the rest is what its machines need from outside: training
(clients), matching (server), opening (key holder), and the ledger in front of every client's bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefl.accounting.ledger import Ledger
from securefl.dp.noise import Source
from securefl.engines.inprocess import InProcess, Traffic
from securefl.engines.scores import ScoreKeys
from securefl.errors import DataError, RemoteProtocolError
from securefl.exchange import Client, Contribute, KeyHolder, Match, Open, Server, Unblind, most_bytes
from securefl.messages import REFUSED, client_name
from securefl.plan import Plan, charge_of, noise, noised, protect
from securefl.release import KEY_HOLDER, SERVER, Charge, Release, ReleaseKey
from securefl.rounds import Algorithm, Answers, Ask, Each, Job, Kept, Statistic
from securefl.wire import Header

Records = tuple[NDArray[Any], NDArray[Any]]


@dataclass
class Log:
    """What the person at this machine may see of one exchange, reasons of clients that abstained included.

    It is no message: nothing in it feeds a machine or leaves this process.
    """

    traffic: Traffic
    abstained: dict[str, str] = field(default_factory=dict)


class StudyHost:
    """All parties of a study in one process; every message still passes as bytes.

    Args:
        records: x and y of each client.
        rng: a client's own stream, from (round, client).
        kept: what each client has kept on its device so far.
        keys: makes the session's score keys from the number of profiled elements, when first needed.
    """

    def __init__(
        self,
        plan: Plan,
        algorithm: Algorithm,
        ledger: Ledger,
        records: Sequence[Records],
        *,
        rng: Callable[[int, int], np.random.Generator],
        keys: Callable[[Each], ScoreKeys],
        kept: Mapping[int, Kept] | None = None,
    ) -> None:
        self._plan = plan
        self._statistics: Mapping[str, Statistic] = {s.sends.name: s for s in algorithm.statistics}
        self._ledger = ledger
        self._records = records
        self._rng = rng
        self._make_keys = keys
        self._keys: ScoreKeys | None = None
        self._log = Log(Traffic())
        self.kept: dict[int, Kept] = dict(kept or {})

    def ask(self, engine: InProcess, ask: Ask, header: Header) -> tuple[Answers, Log]:
        """Run one Ask over the engine. The answers hold whoever answered well and in time."""
        sealed = [e for e in ask.each if e.query is not None and self._plan.scores == "ckks"]
        if sealed and self._keys is None:
            self._keys = self._make_keys(sealed[0])
        size = self._keys.evaluator.ciphertext_bytes if sealed and self._keys else 0
        broadcast, contribution, request = most_bytes(ask, size)
        machines: dict[str, Any] = {
            client_name(k): Client(
                number=k, header=header, offers=frozenset(self._statistics), most_bytes=broadcast
            )
            for k in ask.cohort
        }
        machines[SERVER] = Server(
            ask=ask,
            header=header,
            most_bytes=contribution,
            encrypted=frozenset(e.sends.name for e in sealed),
            gate=self._gate,
        )
        if sealed:
            machines[KEY_HOLDER] = KeyHolder(header=header, most_bytes=request)
        self._log = Log(Traffic())
        results, self._log.traffic = engine.run(machines, header)
        return self._as_promised(ask, results[SERVER]), self._log

    def _as_promised(self, ask: Ask, answers: Answers) -> Answers:
        """What the server that sums does before anybody else sees a sum."""
        promised = [question for question in ask.sums if noised(self._plan, question.sends)]
        if self._plan.noise == "distributed" and promised and len(answers.survivors) < self._plan.survivors:
            short = f"{len(answers.survivors)} of at least {self._plan.survivors} contributions came"
            self._log.abstained[SERVER] = f"{short}: the noise would fall short, so the sum is thrown away."
            return Answers(survivors=(), totals={}, each={each.sends.name: {} for each in ask.each})
        if self._plan.noise != "central":
            return answers
        totals = dict(answers.totals)
        for question in promised:
            drawn = noise(self._plan, question.sends, question.size, Source())
            value = totals[question.sends.name].value + drawn * question.sends.grid.step
            totals[question.sends.name] = replace(totals[question.sends.name], value=value)
        return replace(answers, totals=totals)

    def error_bound(self) -> float | None:
        """Largest error of an encrypted score (probability 1 - 1e-6); None where none was made."""
        return self._keys.terms.error_bound() if self._keys else None

    def number_bytes(self, each: Each) -> int:
        """Bytes of the answer to one question for a number, headers left out."""
        hidden, clear = each.lengths()
        if each.query is None or self._plan.scores == "clear" or self._keys is None:
            return 8 * (hidden + clear)
        return self._keys.evaluator.ciphertext_bytes + 8 * clear

    # For the engine ---------------------------------------------------------------------------

    def work(self, needs: Sequence[tuple[str, Any]]) -> list[Any]:
        """One wave of slow work; all clients' charges are reserved in one transaction first."""
        orders = [order for _, order in needs]
        contributions = self._contribute_many([o for o in orders if isinstance(o, Contribute)])
        return [
            contributions[order.client] if isinstance(order, Contribute) else self._serve(order)
            for order in orders
        ]

    def encode(self, outbox: Sequence[tuple[Header, Any]]) -> list[bytes]:
        return self._ledger.send(outbox)

    def _serve(self, order: Any) -> Any:
        match order:
            case Match():
                return self._match(order)
            case Open():
                return self._open(order)
            case Unblind():
                return self._unblind(order)
        raise AssertionError(f"no work for {order}")

    # Clients ----------------------------------------------------------------------------------

    def _contribute_many(self, orders: Sequence[Contribute]) -> dict[int, tuple[Release, ...] | None]:
        wants = {order.client: self._charges(order) for order in orders if self._scheduled(order)}
        refused = self._ledger.reserve([want for own in wants.values() for want in own])
        answers: dict[int, tuple[Release, ...] | None] = {}
        for order in orders:
            name = client_name(order.client)
            if name in refused or order.client not in wants:
                self._log.abstained[name] = str(refused.get(name, "The declared schedule is over."))
                answers[order.client] = None
                continue
            try:
                answers[order.client] = self._contribute(order, wants[order.client])
            except DataError as error:
                self._log.abstained[name] = str(error)
                answers[order.client] = None
        return answers

    def _scheduled(self, order: Contribute) -> bool:
        return order.header.round <= self._plan.schedule

    def _charges(self, order: Contribute) -> list[tuple[ReleaseKey, Charge]]:
        return [
            (_key(order, name), charge_of(self._plan, self._statistics[name].sends))
            for name in order.order.wants
        ]

    def _contribute(
        self, order: Contribute, charges: Sequence[tuple[ReleaseKey, Charge]]
    ) -> tuple[Release, ...]:
        x, y = self._records[order.client]
        wanted = [self._statistics[name].sends for name in order.order.wants]
        # A noised sum hides whether there are records: silence would tell.
        if not len(x) and not all(noised(self._plan, sends) for sends in wanted):
            raise DataError("It has no records, so it abstains.")
        releases, kept = [], self.kept.get(order.client, {})
        for name, (key, _) in zip(order.order.wants, charges, strict=True):
            job = Job(
                client=order.client,
                round=order.header.round,
                x=x,
                y=y,
                model=order.broadcast.model,
                public=dict(zip(order.broadcast.names, order.broadcast.arrays, strict=True)),
                rng=self._rng(order.header.round, order.client),
                kept=self.kept.get(order.client, {}),
            )
            value = self._statistics[name].compute(job)
            kept = kept if value.keep is None else value.keep
            releases.append(
                protect(
                    self._plan,
                    self._statistics[name].sends,
                    value,
                    key=key,
                    weight=order.order.weight,
                    seal=self._keys.encryptor.encrypt if self._keys else None,
                )
            )
        self.kept[order.client] = kept
        return tuple(releases)

    # The server and the key holder --------------------------------------------------------------

    def _gate(self, sender: str, sealed: bytes) -> None:
        assert self._keys is not None
        self._keys.evaluator.admit(sealed, sender=sender)

    def _match(self, order: Match) -> tuple[Any, tuple[bytes, ...]]:
        assert self._keys is not None
        evaluator = self._keys.evaluator
        baselines = {}
        blinded = []
        for client, each, came in order.items:
            assert each.query is not None
            if each.sends.name not in baselines:
                baselines[each.sends.name] = self._keys.baseline(each.query)
            clear = came.numbers.astype(np.float64)
            baseline, sender = baselines[each.sends.name], client_name(client)
            blinded.append(self._blaming(evaluator.match, came.sealed, baseline, clear, sender=sender))
        return blinded, tuple(b.request for b in blinded if b is not None)

    def _open(self, order: Open) -> tuple[bytes, ...]:
        assert self._keys is not None
        open_ = self._keys.opener.open
        return tuple(self._blaming(open_, item, sender=SERVER) or REFUSED for item in order.items)

    def _unblind(self, order: Unblind) -> tuple[float | None, ...]:
        assert self._keys is not None
        replies = iter(order.replies)
        evaluator = self._keys.evaluator
        scores: list[float | None] = []
        for blinded in order.blinded:
            if blinded is None:
                scores.append(None)
                continue
            reply = next(replies)
            if reply == REFUSED:
                scores.append(None)
                continue
            score = self._blaming(evaluator.unblind, blinded, reply, sender=KEY_HOLDER)
            scores.append(None if score is None else score.value)
        return tuple(scores)

    def _blaming(self, work: Callable[..., Any], *args: Any, **named: Any) -> Any:
        """The result, or None with the peer's name in the log: one bad ciphertext costs one score."""
        try:
            return work(*args, **named)
        except RemoteProtocolError as error:
            self._log.abstained[error.sender] = str(error)
            return None


def _key(order: Contribute, name: str) -> ReleaseKey:
    header = order.header
    return ReleaseKey(
        client_name(order.client), header.session, header.round, header.stage, header.attempt, name
    )
