"""A session with three parties of an app, each of which returns what a test says."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import CohortQuery, Sum
from securefl.core.agreement import Identity
from securefl.core.release import SERVER
from securefl.deployment.engine import RemoteEngine, ServerSide
from securefl.deployment.messages import REFUSED, Compute, Computed, decode_envelope, encode_envelope
from securefl.deployment.roster import PinnedRoster
from securefl.deployment.update_party import UpdateParty
from securefl.deployment.updates import UPDATE, Updates, as_public
from securefl.storage.journal import Journal
from securefl.storage.own_record import OwnRecord

NAMES = ("client-0000", "client-0001", "client-0002")
PLAN = Plan(
    delta=1e-5,
    max_rounds=9,
    non_private=("update",),
    weights={"update": "counts"},
    max_num_examples=64,
    adjacency="add-remove",
)
EQUAL = replace(PLAN, weights={})
UPDATES = Updates()
ONE = 1.0
Result = Callable[[], Computed | None]


class Computing:
    """A relay that computes what `result` says."""

    def __init__(self, result: Result) -> None:
        self.result = result

    def query(self, envelope: bytes, *, seconds: float) -> bytes:
        decode_envelope(envelope, Compute, sender="party")
        result = self.result()
        return REFUSED if result is None else encode_envelope(result)


def computed(entry: float, examples: float = 32, **metrics: float) -> Computed:
    return Computed(
        values=np.array([entry, 0.0]), metrics=np.array(list(metrics.values())), examples=examples
    )


@contextmanager
def session(
    root: Path, results: Mapping[str, Result], plan: Plan = PLAN, updates: Updates = UPDATES
) -> Iterator[Callable[[int], Any]]:
    """A session with three parties of an app. Yields a function that asks for a round's sum."""
    keys = {name: Identity.generate(name) for name in (*NAMES, SERVER)}
    pinned = PinnedRoster({name: own.member() for name, own in keys.items()})
    with ExitStack() as stack:
        parties = {}

        def start(name: str) -> None:
            (root / name).mkdir(exist_ok=True)
            counter = root / "counters" / name
            parties[name] = UpdateParty(name, plan, updates, pinned, keys[name], root / name, counter)

        for name in NAMES:
            start(name)
            stack.callback(lambda name=name: parties[name].close())

        def exchange(sent: Mapping[str, bytes], entering: bool) -> dict[str, bytes]:
            return {
                name: parties[name].answer(Computing(results.get(name, lambda: computed(ONE))), data)  # type: ignore[arg-type]
                for name, data in sent.items()
            }

        side = ServerSide(plan=plan, pinned=pinned, record=OwnRecord(SERVER, Journal(), keys[SERVER]))
        asking = RemoteEngine(
            side, updates.spec(plan), updates.digest, exchange, nonce=secrets.token_bytes(32)
        )
        spec = updates.spec(plan)[UPDATE]
        query = CohortQuery(
            cohort=(0, 1, 2),
            broadcast=np.zeros(2, np.float32),
            public=as_public(b"{}"),
            sums=(Sum(spec, updates.size(plan, UPDATE, 2)),),
        )

        def ask(number: int) -> Any:
            asking.enter()
            answers, _ = asking.query(query, asking.at(number))
            return answers, asking.server.seen, asking.attended(number, range(3))

        def restart(name: str) -> None:
            parties[name].close()
            start(name)

        ask.engine, ask.restart = asking, restart  # type: ignore[attr-defined]
        yield ask
