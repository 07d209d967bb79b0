"""Secure aggregation for a caller's own training loop. Clients' values leave only through this object.

    spec = ValueSpec(name="update", reduction="sum", reveals="its update")
    update = ClientFunction(spec, lambda context: Value(clear=...))
    with SecureAggregator(plan, [update], records, ledger="ledger.sqlite") as aggregator:
        query = CohortQuery(cohort=(0, 1, 2, 3), broadcast=w, sums=(Sum(spec, len(w)),))
        answers = aggregator.query(query)
        w = w + answers.totals["update"].value / answers.totals["update"].weight

The loop keeps its model, its data and its order of steps. The plan says how sums are hidden, how encrypted
numbers are opened and which noise is added. Every charge is in the ledger's file before the value is
computed. All parties run in this process, as in a study, and every message passes as bytes.
"""

from __future__ import annotations

import os
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import get_ident
from typing import Any

from securefl import linear, sums
from securefl.accounting.named_ledger import NamedLedger, holder_of
from securefl.accounting.shared import Allotment, SharedLedger, shared_terms
from securefl.algorithm.clients import ClientContext, ClientFunction
from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import Answers, ByDraws, CohortQuery, Value
from securefl.core.arguments import checked
from securefl.core.errors import BudgetExceeded, ConfigError, LocalProtocolError
from securefl.core.logs import logger
from securefl.core.messages import client_name
from securefl.core.release import KEY_HOLDER, SERVER
from securefl.core.streams import client_stream
from securefl.core.text_safety import require_distinct
from securefl.core.wire import Header
from securefl.data.identity import digest_of_clients, digest_of_records
from securefl.data.in_memory import array_of
from securefl.engine.inprocess import simulated
from securefl.engine.observer import Log
from securefl.engine.party.computing import Records
from securefl.engine.privacy_card import not_held
from securefl.mechanisms.charges import Protection, allotment
from securefl.mechanisms.registry import require_mechanism
from securefl.storage.journal import Journal

_log = logger(__name__)


class SecureAggregator:
    """The secure aggregator of a training loop. It charges each client's ledger, then runs the cohort query.

        >>> import numpy as np, securefl, tempfile
        >>> from securefl.algorithm import CohortQuery, ClientFunction, ValueSpec, Sum, Value
        >>> mean = ValueSpec(name="mean", reduction="sum", reveals="its mean", on_model=False)
        >>> own = ClientFunction(mean, lambda context: Value(clear=context.x.mean(0)))
        >>> clients = [(np.full((4, 2), k), np.zeros(4)) for k in (1.0, 2.0, 6.0)]
        >>> plan = securefl.Plan(
        ...     sum="masked", corrupt=0, min_cohort_size=3, max_cohort_size=3, min_honest=2,
        ...     max_client_weight=0.4, delta=1e-5, non_private=("mean",), max_rounds=1,
        ... )
        >>> folder = tempfile.TemporaryDirectory()
        >>> with folder as d, securefl.SecureAggregator(plan, [own], clients, ledger=f"{d}/l") as aggregator:
        ...     model = np.zeros(0, np.float32)
        ...     query = CohortQuery(cohort=(0, 1, 2), broadcast=model, sums=(Sum(mean, 2),))
        ...     answers = aggregator.query(query)
        ...     answers.totals["mean"].value / 3, aggregator.ledger.worst("server")
        (array([3., 3.]), inf)

    Args:
        plan: its `max_rounds` is the number of queries that a client answers in all. Its
            `max_releases`, if given, is by value name the largest number of noised releases of one client.
        functions: the values that clients may be asked for, each with the function that computes it.
        records: x (n, ...) and y (n,) of each client, by the caller's own id: a text, a whole number, or a
            tuple of these. The clients of a list are called 0, 1 and so on. Queries, contexts, answers,
            `log` and `ledger` have these ids.
        ledger: the ledger's file. An existing file is continued with the charges in it, if its terms are
            the plan's. `masked_sum` and `select_by_profile` continue it too: their terms are those of a plan
            with unit "client" and adjacency "zero-out", without `max_releases`. None is a ledger that lasts
            as long as this object.
        parameters: of the key for encrypted numbers. The key lives as long as this object, and opens as many
            numbers as `max_rounds` queries of all clients need.
        seed: of the stream in the client's context. Noise, masks and keys come from the operating system.
        shared: the file of a ledger that all runs over the same records share (`[privacy] ledger` of a
            study). Before the first query, all releases that the plan allows are reserved there, once for
            `ledger`, however often that file is opened. From then on `ledger` opens with this file alone, and
            one with earlier releases is refused. The plan needs a budget, which then holds over all
            runs together.
        people: all records that the shared ledger counts, if they are more than `records`, such as a test
            part that a study draws from them. With unit "client", all records of each client.

    A value whose specification does not declare `reads_state` may read state that its function keeps. If no
    noise holds that against a server that lies, the log has a warning.

    Attributes:
        ledger: for `epsilon`, `rounds_left` and `rows`.
        log: of the last query: which clients abstained or refused and why, and bytes per party. No party of
            the protocol sees it.

    Raises:
        ConfigError: an argument of another type; the plan can never release a value, no cohort could open a
            sum of it, two values have one name, or two ids look alike; then no ledger is opened. Also if a
            ledger has other terms or an id that looks like one of these, or is counted by another shared
            ledger, or the shared ledger has other records.
        DataError: the ledger is damaged, or of other holders.
        BudgetExceeded: the shared ledger's budget does not bear the plan.
    """

    @checked
    def __init__(
        self,
        plan: Plan,
        functions: Sequence[ClientFunction],
        records: Mapping[Any, Records] | Sequence[Records],
        *,
        ledger: Path | str | None,
        parameters: str = "strong",
        seed: int = 0,
        shared: Path | str | None = None,
        people: Sequence[Records] | None = None,
    ) -> None:
        if isinstance(records, Mapping):
            clients, records = tuple(records), list(records.values())
            functions = [_by_id(function, clients) for function in functions]
        else:
            clients = tuple(range(len(records)))
        records, people = _arrays(records), None if people is None else _arrays(people)
        holders = [holder_of(client) for client in clients]
        # An id of one of the other parties would have its place in the log.
        require_distinct((SERVER, KEY_HOLDER, *clients), "clients' ids")
        self._clients, self._numbers = clients, {holder: k for k, holder in enumerate(holders)}
        specs = [function.spec for function in functions]
        for names in (holders, [spec.name for spec in specs]):
            if twice := [name for name, count in Counter(names).items() if count > 1]:
                raise ConfigError(f"Expected each name once, got {', '.join(twice)} again.")
        require_mechanism(plan)
        scheme = sums.scheme_of(plan)
        for spec in specs:
            # Checked before the ledger is opened, so that a value that can never be released writes no terms
            # into a file.
            Protection(plan, spec).charge()
            if scheme is not None and spec.reduction == "sum":
                scheme.check(spec, spec.cohort or len(records))
        scoring = linear.scheme_of(
            plan.scores,
            parameters=parameters,
            asks=plan.max_rounds * max(1, sum(spec.reduction == "none" for spec in specs)),
            clients=len(records),
        )
        if loose := not_held(plan, specs):
            _log.warning("%s", loose)
        # A fresh nonce, because a continued ledger has releases under the keys of earlier sessions.
        self._session = plan.session([client_name(k) for k in range(len(records))], secrets.token_bytes(32))
        self._asked, self._maker = 0, (os.getpid(), get_ident())
        self.log = Log()
        with ExitStack() as stack:
            together, allotted = None, None
            if shared is not None:
                whole = people or records
                # Of clients epsilons of several runs add up only if each has the same records in all of them.
                clientwise = plan.unit == "client"
                digest = digest_of_clients([own] for own in whole) if clientwise else digest_of_records(whole)
                together = stack.enter_context(SharedLedger(shared, shared_terms(plan.terms()), digest))
                allotted = allotment(plan, specs)
            identity = "" if together is None else together.identity
            self.ledger = NamedLedger(ledger, plan.terms(), allotted=allotted, shared=identity)
            try:
                self.ledger.admit(holders)
                if together is not None and allotted is not None:
                    own = Allotment(run=self.ledger.identity, what="an aggregator", charges=allotted)
                    together.reserve([own])
            except BaseException:
                self.ledger.close()
                raise
        self._journal = Journal()
        self._engine = simulated(
            plan,
            functions,
            self.ledger,
            records,
            rng=partial(client_stream, seed),
            scores=scoring,
            journal=self._journal,
            holder_of=holders.__getitem__,
        )

    def _require_own_thread(self) -> None:
        # SQLite's files are of the thread that opened them, and its own error would come in mid-query. Forks
        # keep the thread's number and would share the session: the ledger would count all of them as one.
        if (os.getpid(), get_ident()) != self._maker:
            raise LocalProtocolError(
                "Expected the thread and process that made this object, got others: its ledger is open there "
                "alone. Make one in each thread and process, securefl.SecureAggregator(...), on the same "
                "ledger."
            )

    def close(self) -> None:
        self._require_own_thread()
        self._journal.close()
        self.ledger.close()

    def __enter__(self) -> SecureAggregator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def query(self, query: CohortQuery) -> Answers:
        """Run one cohort query over these ids. It is a round of its own, in contexts and in the ledger.

        Returns:
            The answers. Their survivors are the clients that answered validly and in time. If too many
            clients abstain from a masked sum, it is not opened: then there are no survivors and no totals.
            `log.refused` names the clients whose ledgers refuse.

        Raises:
            BudgetExceeded: every client refused; the reason is that of the first.
            LocalProtocolError: the query describes a value otherwise than `functions` does, or names a client
                that does not exist, or another thread or process than the maker's calls.
        """
        self._require_own_thread()
        self._asked += 1
        header = Header(self._session, self._asked, 0, 0)
        cohort, weights = {self._number(client): client for client in query.cohort}, query.weights
        if isinstance(weights, ByDraws):
            weights = ByDraws({self._number(client): count for client, count in weights.draws.items()})
        numbered = replace(query, cohort=tuple(sorted(cohort)), weights=weights)
        answers, log = self._engine.query(numbered, header)
        self.log = log.named({client_name(number): client for number, client in cohort.items()})
        # A client that answered, or abstained for another reason, has no refusal here. It is an error only if
        # all clients refused.
        if cohort and len(refused := self.log.refused) == len(cohort):
            raise BudgetExceeded(f"All {len(cohort)} clients refused. {next(iter(refused.values()))}")
        each = answers.per_client.items()
        return replace(
            answers,
            survivors=tuple(cohort[number] for number in answers.survivors),
            per_client={name: {cohort[k]: number for k, number in own.items()} for name, own in each},
        )

    def _number(self, client: object) -> int:
        try:
            return self._numbers[holder_of(client)]
        except (ConfigError, KeyError):
            known = f"{self._clients[0]!r} to {self._clients[-1]!r}" if self._clients else "of none"
            raise LocalProtocolError(
                f"Expected a cohort among the clients {known}, got {client!r}. Name each as in `records`."
            ) from None


def _arrays(records: Sequence[Records]) -> list[Records]:
    """Records in which each tensor is an array, as in a study."""
    made = [[array_of(one, "records") if hasattr(one, "detach") else one for one in own] for own in records]
    return [(x, y) for x, y in made]


def _by_id(function: ClientFunction, clients: Sequence[Any]) -> ClientFunction:
    """The function with the client's id in its context."""

    def compute(context: ClientContext) -> Value:
        return function.compute(replace(context, client=clients[context.client]))

    return replace(function, compute=compute)
