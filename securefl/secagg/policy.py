"""Parameters of secure aggregation: the neighbours, shares and signatures that a cohort needs.

The corrupt clients are fixed before the graph is known. The server, which may lie, sees the graph and then
names the dropped clients. It can also *grind*: it tries many rosters, each of which gives another graph, and
takes the graph that suits it. The calculator grants it 2^grinding tries. Of n clients, c are corrupt and d
may drop. t is the threshold and T the quorum (`Parameters`):

- *complete graph*: semi-honest t > max(n/2, c); active 2t > n + c, and the quorum T = t.
- *sparse graph*: three conditions hold.
  The threshold t exceeds the number of corrupt neighbours of every client, except with probability
  2^-(security + grinding + 1) (`rings.Met`, summed over all clients).
  A survivor with fewer than `least_degree` surviving neighbours is refused. Then no group of honest survivors
  stands apart, except with the same probability (below).
  In active mode 2T > n + c signatures of the whole cohort make the set of survivors unique.

*No group stands apart.* If honest survivors X had no edge to the other honest survivors, the server could
open the sum over X alone. Each member of X has at most t - 1 corrupt neighbours, so it has at least
least_degree - t + 1 neighbours in X. `rings.log2_apart` bounds the probability that random rings have such a
set X, whatever members the server drops. Bell et al. 2020 bound it for members that drop before the graph is
known. The degree grows with the logarithm of n.

*Attempts.* A question is one value that may be opened as one sum (`core.agreement.Question`). After a client
has helped to open one attempt of a question, it enters no later attempt. So each opened sum of a question has
`signers` contributors that no later opened sum has. Any integer combination of opened sums keeps at least
`signers - corrupt` honest contributors: those of its first sum. For this reason a later attempt over fewer
clients keeps the corrupt clients, the quorum and the least survivors of the ordered cohort.
"""

from __future__ import annotations

import hashlib
import math
import struct
from dataclasses import astuple, dataclass
from functools import lru_cache
from typing import Final, Literal

import numpy as np

from securefl.core.cohort import colluding, dropping
from securefl.core.errors import ConfigError
from securefl.core.formats import prefix
from securefl.secagg.rings import Met, log2_apart

Mode = Literal["active", "semi-honest"]
MODES: Final = ("active", "semi-honest")
_LABEL: Final = prefix("secagg/parameters")
"""It names the kind of graph: a party that draws another one has other parameters."""


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """The parameters of one sum, equal for all parties. Each party computes them with `parameters`.

    Attributes:
        mode: "active" protects against a server that lies, "semi-honest" against a curious server.
        ordered: the size of the ordered cohort. A later attempt may have fewer clients.
        clients: n, the size of the pinned cohort of this attempt.
        corrupt: the number of clients of the ordered cohort that may collude with the server. All of them may
            be in this attempt.
        neighbours: k, the most neighbours of a client; n - 1 means the complete graph.
        threshold: t, the number of shares that open a secret.
        quorum: T, the number of signatures on one set of survivors; 0 in semi-honest mode.
        least_survivors: if fewer clients survive, no sum is opened.
        least_degree: the number of surviving neighbours that each survivor must have.
        failure: the probability that a round fails although at most the declared fraction drops.
        security: the bits of security that remain if the server tries 2^grinding graphs. Infinite for a
            complete graph, which has no random choice.

    Raises:
        ConfigError: if the numbers do not protect an input, for example if the quorum is no majority.

    >>> from securefl.secagg import parameters
    >>> found = parameters(10, corrupt=0.2, dropout=0.2, mode="active")
    >>> found.complete, found.signers
    (True, 7)
    """

    mode: Mode
    ordered: int
    clients: int
    corrupt: int
    neighbours: int
    threshold: int
    quorum: int
    least_survivors: int
    least_degree: int
    failure: float
    security: float

    def __post_init__(self) -> None:
        n, c = self.clients, self.corrupt
        majority = _majority(self.mode, self.ordered, c)
        if n > self.ordered:
            raise ConfigError(
                f"Expected at most the {self.ordered} clients that were ordered, got {n}. Compute the "
                "parameters with `parameters`."
            )
        if self.mode == "active" and self.quorum < majority:
            raise ConfigError(
                f"Expected a quorum of at least {majority} of {self.ordered} clients, got {self.quorum}: "
                "fewer signatures could confirm two sets of survivors. Raise it."
            )
        if self.complete and self.threshold < majority:
            raise ConfigError(
                f"Expected a threshold of at least {majority} shares, got {self.threshold}: with fewer, both "
                "secrets of one client could be opened. Raise it."
            )
        # c + 2: if only one honest client survives, the sum minus the corrupt clients' inputs is its input.
        if self.least_survivors < max(self.quorum, self.threshold, c + 2) or self.least_survivors > n:
            raise ConfigError(
                f"Expected at least {max(self.quorum, self.threshold, c + 2)} survivors of {n} clients, two "
                f"honest ones included, got {self.least_survivors}: allow fewer drop-outs or corrupt clients."
            )

    @property
    def complete(self) -> bool:
        """Whether all clients are neighbours of each other."""
        return self.neighbours == self.clients - 1

    @property
    def signers(self) -> int:
        """The least number of clients that take part in an opening. Each does so once for a question.

        In active mode it is the quorum. In semi-honest mode every survivor's secret takes `threshold` of its
        `neighbours` + 1 holders, so at least `least_survivors` times `threshold` shares are opened, at most
        `neighbours` + 1 of them by one client.
        """
        if self.mode == "active":
            return self.quorum
        return -(-self.least_survivors * self.threshold // (self.neighbours + 1))

    def digest(self) -> bytes:
        """Return the SHA-256 over all parameters on which a party acts."""
        # without `failure` and `security`, which are only reported
        _, *numbers, _, _ = astuple(self)
        return hashlib.sha256(_LABEL + struct.pack("<9I", MODES.index(self.mode), *numbers)).digest()


def parameters(
    clients: int,
    corrupt: float,
    dropout: float,
    mode: Mode,
    *,
    ordered: int | None = None,
    complete_up_to: int = 50,
    security: int = 40,
    grinding: int = 60,
    failure: float = 2.0**-30,
) -> Parameters:
    """Return the cheapest parameters for a cohort.

    Args:
        clients: the number of clients in this attempt.
        corrupt: the fraction of the clients that may collude with the server, rounded up.
        dropout: the fraction of the clients that may drop out in all phases together, rounded down.
        mode: "active" or "semi-honest".
        ordered: the size of the ordered cohort, for a later attempt over fewer clients. Corrupt clients,
            quorum and least survivors are computed from it.
        complete_up_to: the largest cohort that gets the complete graph although a sparse one would suffice.
        security: the bits of security that must remain if the server tries 2^grinding graphs.
        grinding: log2 of the number of graphs that the server can try.
        failure: a bound on the probability that a sparse graph fails under the declared drop-out.

    Raises:
        ConfigError: if no parameters meet these demands.

    >>> from securefl.secagg import parameters
    >>> parameters(10, corrupt=0.2, dropout=0.2, mode="active").threshold
    7
    """
    if mode not in MODES:
        raise ConfigError(f"Expected a mode of {MODES}, got {mode!r}. Use one of these words.")
    if clients < 2 or not 0 <= corrupt < 1 or not 0 <= dropout < 1:
        raise ConfigError(
            f"Expected two clients or more, and `corrupt` and `dropout` as fractions in [0, 1), got "
            f"{clients}, {corrupt} and {dropout}."
        )
    whole = clients if ordered is None else ordered
    most, survivors = colluding(corrupt, whole), whole - dropping(dropout, whole)
    if not survivors <= clients <= whole:
        raise ConfigError(
            f"Expected {survivors} to {whole} clients of the {whole} ordered in an attempt, got {clients}. "
            "With fewer, order a new cohort."
        )
    if clients > complete_up_to:
        sparse = _sparse(mode, whole, clients, survivors, most, security + grinding, grinding, failure)
        if sparse is not None:
            return sparse
    majority = _majority(mode, whole, most)
    return Parameters(
        mode=mode,
        ordered=whole,
        clients=clients,
        corrupt=most,
        neighbours=clients - 1,
        threshold=majority,
        quorum=majority if mode == "active" else 0,
        least_survivors=survivors,
        least_degree=survivors - 1,
        failure=0.0,
        security=math.inf,
    )


def _majority(mode: Mode, clients: int, corrupt: int) -> int:
    # Active: 2t > n + c. Two sets of t clients share more than c clients, so at least one honest client. It
    # signs only one set of survivors.
    return (clients + corrupt) // 2 + 1 if mode == "active" else max(clients // 2, corrupt) + 1


@lru_cache(maxsize=64)
def _sparse(
    mode: Mode,
    ordered: int,
    clients: int,
    survivors: int,
    corrupt: int,
    bits: int,
    grinding: int,
    failure: float,
) -> Parameters | None:
    """Return the parameters with the sparse graph of smallest sufficient degree, or None."""
    quorum = _majority(mode, ordered, corrupt) if mode == "active" else 0
    # This only saves time: for so few survivors `Parameters` refuses the complete graph too. One survivor
    # more would not help a sparse graph: each of two honest survivors has at most one honest neighbour.
    if survivors < max(quorum, corrupt + 2):
        return None
    # The largest share of corrupt clients: all clients that drop do so before the roster closes. And the
    # fewest neighbours that survive: all of them drop afterwards.
    colludes, stays = Met(survivors - 1, corrupt), Met(clients - 1, survivors - 1)
    colludes.turn()
    stays.turn()
    # from two rings on: one is cut by any two members
    for degree in range(4, survivors - 1, 2):
        colludes.turn()
        stays.turn()
        # half of what may fail is left for the groups
        corrupted = clients * colludes.at_least
        threshold = max(2, int(np.argmax(corrupted <= 2.0 ** -(bits + 1))))
        lonely = clients * stays.at_most
        least = int(np.argmax(lonely > failure))
        # This only saves time: with so small a degree one honest client can stand apart, which `log2_apart`
        # finds too. A threshold is at most the degree, so it never exceeds the number of survivors.
        if least < threshold:
            continue
        apart = log2_apart(clients, survivors, corrupt, degree // 2, least - threshold + 1)
        if apart > -(bits + 1):
            continue
        fails = float(corrupted[threshold] + 2.0**apart)
        return Parameters(
            mode=mode,
            ordered=ordered,
            clients=clients,
            corrupt=corrupt,
            neighbours=degree,
            threshold=threshold,
            quorum=quorum,
            least_survivors=survivors,
            least_degree=least,
            failure=float(lonely[least - 1]),
            security=-math.log2(fails) - grinding if fails else math.inf,
        )
    return None


@dataclass(frozen=True, kw_only=True)
class Policy:
    """A client's demands on a sum, from its own copy of the plan. Raises nothing before `check` is called.

    Attributes:
        mode, corrupt, dropout: the inputs of `parameters`.
        min_cohort_size: the smallest number of clients in an attempt. If there are fewer, the client refuses.
        min_honest: the smallest number of honest contributors in any combination of opened sums.
        least_survivors: the smallest number of survivors in a sum. If there may be fewer, the client refuses.

    >>> from securefl.secagg import Policy
    >>> policy = Policy(mode="active", corrupt=0.2, dropout=0.2, min_cohort_size=10)
    >>> policy.check(policy.parameters(10))
    """

    mode: Mode
    corrupt: float
    dropout: float
    min_cohort_size: int = 2
    min_honest: int = 1
    least_survivors: int = 2

    def parameters(self, clients: int, ordered: int | None = None) -> Parameters:
        """Return the parameters of an attempt over so many clients. Raises ConfigError if there are none."""
        return parameters(clients, self.corrupt, self.dropout, self.mode, ordered=ordered)

    def check(self, given: Parameters) -> None:
        """Raise ConfigError unless these are the client's own parameters and meet its demands."""
        if given != self.parameters(given.clients, given.ordered):
            raise ConfigError(
                f"Expected the parameters that follow from this client's plan, got {given}, which may "
                "protect less. Give all parties the same plan."
            )
        wanted = {
            "clients": (given.clients, self.min_cohort_size),
            "honest signers": (given.signers - given.corrupt, self.min_honest),
            "survivors": (given.least_survivors, self.least_survivors),
        }
        for what, (got, least) in wanted.items():
            if got < least:
                raise ConfigError(
                    f"Expected at least {least} {what}, got {got}: these parameters protect less than this "
                    "client asks for. Order a larger cohort, or give all parties the same plan."
                )
