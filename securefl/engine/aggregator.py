"""A door in somebody else's training loop: through it values leave their clients, and in no other way.

    weights = Given(Sends(name="update", reduction="sum", reveals="its update"), lambda job: Value(clear=...))
    with Door(plan, [weights], records, ledger="ledger.sqlite") as door:
        answers = door.ask(Ask(cohort=(0, 1, 2, 3), broadcast=w, sums=(Sum(weights.sends, len(w)),)))
        w = w + answers.totals["update"].value / answers.totals["update"].weight

The loop keeps its model, its data and its order of things. How sums are summed, how numbers are opened and
what is noised are words of the plan; every charge is in the ledger's file before the value is computed. All
parties live in this process, as in a study, and every message passes as bytes.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from securefl import linear, sums
from securefl.accounting.ledger import Ledger
from securefl.accounting.shared import Allotment, SharedLedger, shared_terms
from securefl.algorithm.clients import ClientFunction
from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import Answers, CohortQuery
from securefl.core.errors import BudgetExceeded, ConfigError
from securefl.core.messages import client_name
from securefl.core.streams import client_stream
from securefl.core.wire import Header
from securefl.data.identity import digest_of_records
from securefl.engine.inprocess import simulated
from securefl.engine.observer import Log
from securefl.engine.party.computing import Records
from securefl.mechanisms.charges import allotment, charge_of
from securefl.mechanisms.registry import require_mechanism
from securefl.storage.journal import Journal


class SecureAggregator:
    """Runs a loop's questions as exchanges between all parties, with the ledger in front of the clients.

        >>> import numpy as np, securefl
        >>> from securefl.engine.aggregator import ClientFunction
        >>> from securefl.algorithm.queries import CohortQuery, ValueSpec, Sum, Value
        >>> mean = ValueSpec(name="mean", reduction="sum", reveals="its mean")
        >>> own = ClientFunction(mean, lambda context: Value(clear=context.x.mean(0)))
        >>> clients = [(np.full((4, 2), k), np.zeros(4)) for k in (1.0, 2.0, 6.0)]
        >>> plan = securefl.Plan(
        ...     sum="masked", corrupt=0, min_cohort_size=3, max_cohort_size=3, min_honest=2,
        ...     max_client_weight=0.4, delta=1e-5, non_private=("mean",), max_rounds=1,
        ... )
        >>> with securefl.SecureAggregator(plan, [own], clients, ledger="door.sqlite") as aggregator:
        ...     model = np.zeros(0, np.float32)
        ...     query = CohortQuery(cohort=(0, 1, 2), broadcast=model, sums=(Sum(mean, 2),))
        ...     answers = aggregator.query(query)
        ...     answers.totals["mean"].value / 3, aggregator.ledger.worst("server")
        (array([3., 3.]), inf)

    Args:
        plan: its `max_rounds` is the number of asks that clients answer at all; its `max_releases`, where
            there are any, the noised releases of one client by name.
        gives: what clients may be asked for.
        records: x and y of each client, client 0 first.
        ledger: the file; an older one goes on, with what was spent in it, under the same terms only.
        parameters: of the key for encrypted numbers; it lives as long as this object and opens as many as
            `max_rounds` asks of all clients need.
        seed: of the stream that a `ClientContext` carries. Noise, masks and keys come from the operating
            system.
        shared: the file of a ledger that all runs over the same records share (`[privacy] ledger` of a
            study). All that the plan lets out is reserved there before anything is asked, once for `ledger`,
            however often that is opened. It needs a budget, which then holds over all of them together.
        people: all records that the shared ledger counts, if they are more than `records`, such as a test
            part that a study draws from them.

    Attributes:
        ledger: for `epsilon`, `rounds_left` and `rows`.
        log: of the last ask: who abstained or refused and why, and bytes per party. No party of the
            protocol sees it.

    Raises ConfigError for a value that the plan could never let out, for a sum of it that no cohort could
    open, and for two of one name. Then no ledger is opened. Raises BudgetExceeded where the shared ledger's
    budget does not bear the plan, and ConfigError for a shared ledger of other terms or records.
    """

    def __init__(
        self,
        plan: Plan,
        functions: Sequence[ClientFunction],
        records: Sequence[Records],
        *,
        ledger: Path | str,
        parameters: str = "strong",
        seed: int = 0,
        shared: Path | str | None = None,
        people: Sequence[Records] | None = None,
    ) -> None:
        names = [function.spec.name for function in functions]
        if len(set(names)) < len(names):
            raise ConfigError(f"Expected each name once, got {', '.join(names)}.")
        require_mechanism(plan)
        scheme = sums.scheme_of(plan)
        for function in functions:
            # Before the ledger is opened: a value that can never leave must not put the plan's terms into a
            # file.
            charge_of(plan, function.spec)
            if scheme is not None and function.spec.reduction == "sum":
                scheme.check(function.spec, function.spec.cohort or len(records))
        scoring = linear.scheme_of(
            plan.scores,
            parameters=parameters,
            asks=plan.max_rounds * max(1, sum(function.spec.reduction == "none" for function in functions)),
            clients=len(records),
        )
        # A fresh nonce: an older ledger goes on, and its releases have the keys of other sessions.
        self._session = plan.session([client_name(k) for k in range(len(records))], secrets.token_bytes(32))
        self._asked = 0
        self.log = Log()
        allotted = None if shared is None else allotment(plan, [function.spec for function in functions])
        self.ledger = Ledger(ledger, plan.terms(), allotted=allotted)
        if shared is not None and allotted is not None:
            try:
                self._reserve(shared, plan, allotted, people or records)
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
        )

    def _reserve(
        self, shared: Path | str, plan: Plan, charges: Mapping[str, int], people: Sequence[Records]
    ) -> None:
        own = Allotment(run=self.ledger.identity, what="a door", charges=charges)
        with SharedLedger(shared, shared_terms(plan.terms()), digest_of_records(people)) as together:
            together.reserve([own])

    def close(self) -> None:
        self._journal.close()
        self.ledger.close()

    def __enter__(self) -> SecureAggregator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def query(self, query: CohortQuery) -> Answers:
        """Whoever answers well is a survivor; clients whose ledger refuses are named in `log.refused`.

        A masked sum that too many abstained from is not opened: there are no survivors and no totals then.
        Every ask is a round of its own, in `ClientContext.round` and in the ledger.

        Raises:
            BudgetExceeded: every client refused; the reason is that of the first.
            LocalProtocolError: the Ask describes a value otherwise than what is offered.
        """
        self._asked += 1
        header = Header(self._session, self._asked, 0, 0)
        answers, self.log = self._engine.query(query, header)
        # Whoever answers, or abstains for another reason, has no refusal here. Only refusals by all are an
        # error.
        reasons = [self.log.refused.get(client_name(k)) for k in query.cohort]
        if reasons and reasons[0] is not None and None not in reasons:
            raise BudgetExceeded(f"All {len(reasons)} clients refused. {reasons[0]}")
        return answers
