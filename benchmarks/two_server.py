"""One two-server sum, timed: the machines of `sum = "two-server"`, fed with encoded bytes, on one thread.

Counted: encoding and decoding, the ledger's commit, the record of acts (both in memory), every signature, box
and pad. Not counted: training, the reservation of the charge, and the lasting keys.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from masked_round import TERMS, Sum
from numpy.typing import NDArray

from securefl.accounting.ledger import Ledger
from securefl.algorithm.plan import Plan
from securefl.algorithm.weighing import Weights
from securefl.core.grid import Grid
from securefl.core.keys import SecretKey
from securefl.core.release import KEY_HOLDER, SERVER
from securefl.core.signing import AgreementKey
from securefl.secagg import Identity, Roster, Vector
from securefl.storage.journal import Journal
from securefl.sums.opened import OpenedClient, OpenedKeyHolder, OpenedServer
from securefl.sums.two_server.agreement import Agreement
from securefl.sums.two_server.scheme import PaddingPart, PadsPart, UnpaddingPart

PLAN = Plan(
    delta=1e-5,
    max_rounds=1,
    sum="two-server",
    corrupt=0.0,
    min_cohort_size=2,
    max_cohort_size=10_000,
    min_honest=2,
    max_client_weight=0.5,
)


def two_server(
    owners: Sequence[Identity],
    vector: Vector,
    grid: Grid,
    values: Callable[[int], NDArray[np.float64]],
    silent: int,
) -> dict[str, float]:
    """The figures of one sum; the last `silent` clients never answer."""
    boxed_for, key = AgreementKey.generate(), AgreementKey.generate()
    part = PadsPart(SecretKey(os.urandom(32)), PLAN, (), boxed_for, lambda at, name, digest: None)
    with Ledger(None, TERMS) as ledger, Journal() as journal:
        own = Sum(vector, grid, ledger, journal)
        agreed = Agreement(
            header=own.header,
            roster=Roster(tuple(owner.member() for owner in owners)),
            vectors=(vector,),
            plan=bytes(32),
            task=bytes(32),
            holder=part.key.public,
            ordered=len(owners),
            weights=Weights((1,) * len(owners)).encoded(),
            server=key.public,
        )
        own.begin(SERVER, lambda: OpenedServer(agreement=agreed, least=2, part=UnpaddingPart(key)))
        own.begin(KEY_HOLDER, lambda: OpenedKeyHolder(agreement=agreed, least=2, part=part))
        for owner in owners:
            client = partial(OpenedClient, identity=owner, agreement=agreed, signers=2, part=PaddingPart())
            own.begin(owner.name, client)
        for number, owner in enumerate(owners[: len(owners) - silent]):
            own.work(owner.name)
            own.conceal(owner.name, values(number))
            own.post(owner.name)
        if silent:
            own.deadline()
        own.work(SERVER)
        own.post(SERVER)
        while own.steps[KEY_HOLDER].need is not None:
            own.work(KEY_HOLDER)
        own.post(KEY_HOLDER)
        own.work(SERVER)
        found = own.figures(own.steps[SERVER].result.totals[vector.name])
        return found | {
            "key_holder_ms": 1e3 * own.spent[KEY_HOLDER],
            "bytes_between": float(own.up[SERVER] + own.up[KEY_HOLDER]),
        }
