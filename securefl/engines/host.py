"""What surrounds the machines of an in-process study: records, ledger, keys, and work in waves.

`ask` runs one Ask as an exchange, and where sums are hidden as an exchange of orders and numbers, followed
by attempts at the sum. The rest is what the machines need from outside: training (clients), a journal for
acts, a place to run other slow work, and the ledger in front of every client's bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from securefl.accounting.ledger import Ledger
from securefl.core.errors import BudgetExceeded, ConfigError, LocalProtocolError
from securefl.core.release import KEY_HOLDER, SERVER
from securefl.core.wire import Header
from securefl.engines.central import with_noise
from securefl.engines.clients import Clients, Records
from securefl.engines.inprocess import InProcess, Traffic
from securefl.exchange import Client, Server, limits
from securefl.exchange.server import broadcast_of, order_of
from securefl.messages import client_name, task
from securefl.plan import CLEAR, Plan, fewest_contributions, noised
from securefl.rounds import Answers, Ask, Each, Kept, Offer
from securefl.scores import Way as ScoreWay
from securefl.storage.journal import Journal
from securefl.sums import Attempt, Opened, Way, way_of


@dataclass
class Log:
    """What the person at this machine may see of one Ask, reasons of clients that abstained included.

    It is no message: nothing in it feeds a machine or leaves this process.
    """

    traffic: Traffic
    abstained: dict[str, str] = field(default_factory=dict)
    refused: dict[str, BudgetExceeded] = field(default_factory=dict)
    """By client, why its ledger or its schedule did not bear what was asked; it is in `abstained` too."""
    moved: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By client, how many of its profile's entries were clipped, and how many floored."""


class Host:
    """All parties of a study in one process; every message still passes as bytes.

    Args:
        offered: what clients may be asked for.
        records: x and y of each client.
        rng: a client's own stream, from (round, client).
        kept: what each client has kept on its device so far.
        culprits: clients that were proven to cheat; they are in no hidden sum any more.
        spare: how many more attempts at hidden sums the run has; by default the plan's.
        journal: where parties record what they must not do twice, or otherwise, in a hidden sum.
        scores: the plan's way of scoring; None where it opens numbers in the clear.
    """

    def __init__(
        self,
        plan: Plan,
        offered: Sequence[Offer],
        ledger: Ledger,
        records: Sequence[Records],
        *,
        rng: Callable[[int, int], np.random.Generator],
        scores: ScoreWay | None = None,
        kept: Mapping[int, Kept] | None = None,
        culprits: Iterable[int] = (),
        spare: int | None = None,
        journal: Journal | None = None,
    ) -> None:
        self._plan = plan
        offers = {s.sends.name: s for s in offered}
        self._offers = {name: offer.sends for name, offer in offers.items()}
        self._ledger = ledger
        self._journal = journal or Journal()
        self._clients = Clients(plan, offers, ledger, self._journal, records, rng=rng, kept=kept or {})
        self._scores = scores
        if (scores is None) != (plan.scores == CLEAR):
            raise ConfigError(
                f"Expected a way of scoring for scores = {plan.scores!r}, and none in the clear."
            )
        self._numbers = range(len(records))
        self._log = Log(Traffic())
        self._way = way_of(plan, self._journal)
        self.spare = plan.spare if spare is None else spare
        self._culprits = set(culprits)

    @property
    def worker(self) -> Clients:
        """What an engine asks for slow work and bytes."""
        return self._clients

    @property
    def kept(self) -> Mapping[int, Kept]:
        """What each client has kept on its device so far."""
        return self._clients.kept

    def retired(self, number: int) -> Mapping[int, BudgetExceeded]:
        """The clients whose ledger does not bear round `number`, and why."""
        return self._clients.retired(number)

    def culprits(self) -> frozenset[int]:
        """The clients that were proven to cheat."""
        return frozenset(self._culprits)

    def ask(self, engine: InProcess, ask: Ask, header: Header) -> tuple[Answers, Log]:
        """Run one Ask over the engine. The answers hold whoever answered well and in time.

        Raises LocalProtocolError for an Ask that describes a value otherwise than its clients, or that asks
        clients that there are not.
        """
        self._check_offered(ask)
        strange = [k for k in ask.cohort if not isinstance(k, int | np.integer) or k not in self._numbers]
        if strange:  # a number from the end would be a second name of a client, with a budget of its own
            raise LocalProtocolError(
                f"Expected a cohort among the clients 0 to {len(self._numbers) - 1}, got {strange}."
            )
        self._log = Log(Traffic())
        enough = max(
            self._plan.least_cohort,
            fewest_contributions(self._plan, len(ask.cohort), [question.sends for question in ask.sums]),
        )
        if ask.sums and len(ask.cohort) < enough:  # to ask would cost budgets, and open nothing
            self._log.abstained[SERVER] = f"{len(ask.cohort)} clients are left, a sum needs {enough}."
            return nobody(ask), self._log
        if self._way is None or not ask.sums:
            answers = self._exchange(engine, ask, header)
        else:
            answers = self._hidden(engine, ask, header, self._way)
        self._clients.settle()
        answers = self._enough(ask, answers)
        return with_noise(self._plan, self._journal, ask, answers, header), self._log

    def _check_offered(self, ask: Ask) -> None:
        """Noise, thresholds and grid come from the Ask, charges from what clients offer: one text."""
        for how, questions in (("sum", ask.sums), ("each", ask.each)):
            for question in questions:
                sends = question.sends
                if self._offers.get(sends.name) != sends or sends.how != how:
                    raise LocalProtocolError(
                        f"Expected a description that clients offer, got another of {sends.name!r} "
                        f"({sends.how!r}) in a question for {how!r}. Ask with the `sends` of what is offered."
                    )

    def _exchange(
        self, engine: InProcess, ask: Ask, header: Header, *, hidden: bool = False, again: int = 0
    ) -> Answers:
        concealed, scoring = [e for e in ask.each if e.query is not None], None
        if self._scores is not None and concealed:
            scoring = self._scores.begin(concealed, len(ask.cohort), header, self._log.abstained.__setitem__)
        told, contribution = limits(ask, 0 if scoring is None else scoring.sealed_bytes)
        machines: dict[str, Any] = {
            client_name(k): Client(
                number=k,
                header=header,
                plan=self._plan,
                offers=self._offers,
                most=told,
                conceal={} if scoring is None else scoring.conceal,
            )
            for k in ask.cohort
        }
        machines[SERVER] = Server(
            ask=ask,
            header=header,
            most=contribution,
            hidden=hidden,
            again=again,
            scoring=scoring,
        )
        if scoring is not None:
            machines[KEY_HOLDER] = scoring.key_holder()
        self._clients.orders.clear()
        answers: Answers = self._run(engine, machines, header)[SERVER]
        self._tell_unanswered(answers, concealed if scoring is not None else ())
        return answers

    def _tell_unanswered(self, answers: Answers, concealed: Sequence[Each]) -> None:
        """Name the key holder where numbers are missing and nobody is named for it."""
        told = {*self._log.abstained, *self._log.traffic.blamed}
        missing = {
            k for each in concealed for k in set(answers.survivors) - set(answers.each[each.sends.name])
        }
        untold = [k for k in missing if client_name(k) not in told]
        if untold and not told & {SERVER, KEY_HOLDER}:
            self._log.abstained[KEY_HOLDER] = (
                f"It opened no number of {len(untold)} clients: it refused without a reason or fell silent."
            )

    def _hidden(self, engine: InProcess, ask: Ask, header: Header, way: Way) -> Answers:
        """Orders and numbers, then attempts at the sums.

        An attempt that ends before anybody has signed is tried again while there is a spare one. Afterwards a
        noised question may be put anew, with fresh noise and a fresh charge; any other one is lost.
        """
        each, again = self._exchange(engine, ask, header, hidden=True).each, 0
        while True:
            told = task(
                header, order_of(ask, sorted(ask.cohort), hidden=True, again=again), broadcast_of(ask)
            )
            found, header, final = self._attempts(engine, ask, header, told, again, way)
            if found is not None:
                return replace(found, each=each)
            anew = final and all(noised(self._plan, question.sends) for question in ask.sums)
            if not anew or not self.spare:
                return replace(nobody(ask), each=each)
            self.spare -= 1
            again, header = again + 1, _next(header)
            ask = replace(ask, each=())
            self._exchange(engine, ask, header, hidden=True, again=again)

    def _attempts(
        self, engine: InProcess, ask: Ask, header: Header, told: bytes, again: int, way: Way
    ) -> tuple[Answers | None, Header, bool]:
        """Attempts without proven culprits: the sums or None, the last place, and whether it was final."""
        while True:
            header = _next(header)
            attempt = Attempt(
                ask=ask,
                again=again,
                cohort=[k for k in ask.cohort if k not in self._culprits],
                ordered=len(ask.cohort),
                header=header,
                task=told,
                told=self._clients.tasks(),
            )
            try:
                machines = way.machines(attempt)
            except ConfigError as error:  # the cohort is too small for what the plan asks for
                self._log.abstained[SERVER] = str(error)
                return None, header, False
            found = way.outcome(machines[SERVER], self._run(engine, machines, header).get(SERVER))
            self._log.traffic.blamed |= found.culprits
            self._culprits |= {k for k in attempt.cohort if client_name(k) in found.culprits}
            if isinstance(found, Opened):
                return _answers(ask, found), header, True
            self._log.abstained[SERVER] = found.reason
            if found.final or not self.spare:
                return None, header, found.final
            self.spare -= 1

    def _run(self, engine: InProcess, machines: Mapping[str, Any], header: Header) -> dict[str, Any]:
        results, traffic = engine.run(machines, header)
        self._log.traffic.add(traffic)
        self._log.abstained |= self._clients.abstained
        self._log.refused |= self._clients.refused
        self._log.moved |= self._clients.moved
        self._clients.forget()
        return results

    def _enough(self, ask: Ask, answers: Answers) -> Answers:
        """The answers, or none to sums whose shares of noise fall short."""
        promised = [question.sends for question in ask.sums if noised(self._plan, question.sends)]
        enough = fewest_contributions(self._plan, len(ask.cohort), promised)
        if self._plan.noise != "distributed" or not promised or len(answers.survivors) >= enough:
            return answers
        short = f"{len(answers.survivors)} of at least {enough} contributions came"
        self._log.abstained[SERVER] = f"{short}: the noise would fall short, so the sum is thrown away."
        return replace(nobody(ask), each=answers.each)

    def error_bound(self) -> float | None:
        """Largest error of an encrypted score (probability 1 - 1e-6); None where none was made."""
        return None if self._scores is None else self._scores.error_bound()

    def number_bytes(self, each: Each) -> int:
        """Bytes of the answer to one question for a number, headers left out."""
        hidden, clear = each.lengths()
        sealed = None if self._scores is None or each.query is None else self._scores.sealed_bytes(each)
        return 8 * (hidden + clear) if sealed is None else sealed + 8 * clear


def _answers(ask: Ask, opened: Opened) -> Answers:
    """What the server has of a hidden sum; the numbers of the ask come from elsewhere."""
    survivors = tuple(k for k in ask.cohort if client_name(k) in set(opened.survivors))
    totals = {s.sends.name: ask.total(s, opened.totals[s.sends.name], survivors) for s in ask.sums}
    return Answers(survivors=survivors, totals=totals, each={})


def nobody(ask: Ask) -> Answers:
    """No sum was opened."""
    return Answers(survivors=(), totals={}, each={each.sends.name: {} for each in ask.each})


def _next(header: Header) -> Header:
    """The place of the next attempt: attempts are numbered upward."""
    return replace(header, attempt=header.attempt + 1)
