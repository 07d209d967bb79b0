"""A client that waits encrypts zeros for its next message: in memory, each used once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from support.residents import NAMES, Deployment

from securefl.algorithm.clients import ClientContext
from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import CohortQuery, PerClient, Schedule, Value, ValueSpec
from securefl.core.linear import LinearBounds, LinearQuery
from securefl.core.release import KEY_HOLDER, SERVER
from securefl.he.ring import Ring
from securefl.linear.registry import scheme_of

SPEC = ValueSpec(
    name="own",
    reduction="none",
    reveals="it",
    reveals_encrypted="a number",
    schedule=Schedule(max_releases=9),
)
BOUNDS = LinearBounds(hidden_length=2, norm=9.0, weight_norm=2.0, row_norm=2.0, product=18.0)
QUERY = CohortQuery(
    cohort=(0, 1, 2, 3),
    broadcast=np.zeros(1, dtype=np.float32),
    per_client=(PerClient(SPEC, LinearQuery(BOUNDS, np.array([1.0, 0.5]))),),
)
ME = NAMES[1]


@dataclass(frozen=True)
class Pairs:
    spec: ValueSpec = SPEC

    def compute(self, context: ClientContext) -> Value:
        return Value(hidden=np.array([context.client, 4.0]), clear=np.zeros(0))

    def linear_bounds(self, broadcast: Any, public: Any) -> LinearBounds:
        return BOUNDS


def deployed(word: str) -> Deployment:
    plan = Plan(delta=1e-5, max_rounds=4, scores=word, non_private=("own",))  # type: ignore[arg-type]
    scores = scheme_of(word, parameters="strong", asks=9, clients=4)
    made = Deployment(plan, spec=SPEC, contribution=Pairs(), scores=scores)
    assert set(made.enter(bytes(32))) == {*NAMES, KEY_HOLDER}
    return made


def asked(own: Deployment, number: int) -> None:
    scores = own.query(number, QUERY).per_client["own"]
    assert scores == pytest.approx({k: k + 2.0 for k in range(4)}, abs=1e-3)


@pytest.fixture
def zeros(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """The number of zeros that were encrypted since the last call."""
    made, make = [0], Ring.zero

    def zero(ring: Ring, encryptor: Any, scale: float) -> Any:
        made[0] += 1
        return make(ring, encryptor, scale)

    def since() -> int:
        found, made[0] = made[0], 0
        return found

    monkeypatch.setattr(Ring, "zero", zero)
    return since


def test_a_waiting_client_prepares_one_message_and_uses_it_once(zeros: Callable[[], int]) -> None:
    own = deployed("ckks")
    me = own.residents[ME]
    assert not me.prepare(), "it has no key yet"
    assert zeros() == 0
    asked(own, 1)
    assert zeros() == 4, "each client made one as it answered"
    for _ in range(3):
        assert not me.prepare(), "one ciphertext is a message here"
    assert zeros() == 1
    asked(own, 2)
    assert zeros() == 3, "all but the one that had prepared"
    asked(own, 3)
    assert zeros() == 4, "what it had prepared is used up"


def test_pads_prepare_nothing(zeros: Callable[[], int]) -> None:
    own = deployed("pads")
    asked(own, 1)
    assert not own.residents[ME].prepare()
    assert zeros() == 0


def test_a_restarted_client_has_nothing_prepared(zeros: Callable[[], int]) -> None:
    own = deployed("ckks")
    asked(own, 1)
    own.residents[ME].prepare()
    zeros()
    own.start(ME)
    assert not own.residents[ME].prepare(), "it has entered no session"
    own.transport.enter([ME])
    asked(own, 2)
    assert zeros() == 4


def test_nothing_is_prepared_under_the_key_of_a_key_holder_that_is_gone(zeros: Callable[[], int]) -> None:
    own = deployed("ckks")
    asked(own, 1)
    own.residents[ME].prepare()
    zeros()
    own.start(KEY_HOLDER)
    own.transport.enter([KEY_HOLDER])
    asked(own, 2)
    assert zeros() == 4, "the one that was prepared is of no use"


def test_a_server_and_a_key_holder_prepare_nothing() -> None:
    own = deployed("ckks")
    asked(own, 1)
    assert not own.residents[KEY_HOLDER].prepare()
    assert SERVER not in own.residents
