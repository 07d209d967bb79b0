"""What tests of encrypted matching share."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from securefl.core.messages import OpenRequest
from securefl.core.release import SERVER
from securefl.core.signing import SigningKey
from securefl.core.wire import Header, Limit
from securefl.dp.moments import MeanVariance
from securefl.he.keys import KeyPair
from securefl.he.parameters import Parameters
from securefl.linear.opener import KeyHolder, Opener
from securefl.linear.scheme import Found, Scoring, Sent
from securefl.matching.profiles import Bounds

SIGNER = SigningKey.generate()
BOUNDS = Bounds(mean=16, variance_high=64, weight=16)


class Quiet(random.Random):
    """Takes the flooding away, so that what lies under it can be looked at."""

    def gauss(self, mu: float = 0.0, sigma: float = 1.0) -> float:
        return 0.0


def seeded() -> random.Random:
    """Flooding that repeats: a bound that one score in 10^6 exceeds then holds always or never."""
    return random.Random(1)


SURELY = 1.4
"""Under fresh flooding: one score in 10^6 exceeds its bound, and one in 10^11 exceeds 1.4 times its bound."""


def profile(seed: int, q: int) -> MeanVariance:
    rng = np.random.default_rng(seed)
    return MeanVariance(rng.normal(size=q), rng.uniform(0.2, 3, q), 50)


@cache
def keys(parameters: Parameters) -> KeyPair:
    return KeyPair.generate(parameters)


def converse(
    scoring: Scoring, opener: Opener, tell: Callable[[str, str], None], sent: Sequence[Sent]
) -> tuple[Found, int]:
    """Server and key holder of one exchange: the numbers, and how many items were to be opened."""
    holder: Any = KeyHolder(
        header=Header(bytes(32), 1, 0, 0), most=Limit(2**30, 99), open_=opener.open, report=tell
    )
    asked = scoring.score(tuple(sent)).run()
    came = holder.receive(holder.begin().state, SERVER, OpenRequest(items=asked.items))
    step = holder.provide(came.state, came.need.order.run())
    return asked.then(step.out[0].message.items).run(), len(asked.items)
