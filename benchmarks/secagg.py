"""Secure aggregation beside Flower's SecAgg+ and beside the bare keystream, in one interleaved run.

    python benchmarks/secagg.py [--write]
    python benchmarks/secagg.py --cohorts 1000 3000

Prints, per number of clients, length and share that drops out before its masked input: CPU milliseconds per
client (mean over survivors) and at the server, what the client's quantising takes of it, bytes per survivor,
the largest error of the sum, and the floor: AES-256-CTR alone, for as many masks as the client or the server
has. `--cohorts` plays large cohorts in active mode, 10 % corrupt and 10 % dropped; `--write` keeps the other
figures in benchmarks/results/secagg.json.
A second line has the same sum by two servers (`sum = "two-server"`, see two_server.py): its client draws one
keystream, its key holder one for each survivor, and its server none.

Ours is the first round of a session in active mode, 20 % corrupt, on the complete graph; masked_round.py says
what is counted. Flower's is semi-honest, and its messages are not serialised. Ours and the floor are measured
before and after Flower's round.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable, Mapping
from functools import partial
from statistics import median
from typing import Any

import pandas as pd
from flower_secagg import flower
from kept import keep
from masked_round import grid, identities, keystream, ours, update
from two_server import two_server

from securefl.core.memory import keep_freed_memory
from securefl.secagg import Policy, Vector

CLIENTS, LENGTHS, DROPOUTS = (10, 30), (10**4, 10**5, 10**6), (0.0, 0.1, 0.3)

FLOWERS = ("client_ms", "server_ms", "bytes_up", "bytes_down", "error")
TURNS = 2
"""Rounds of ours before, and after, Flower's."""


def medians(
    play: Callable[[], dict[str, float]], masks: Mapping[str, int], length: int, between: Callable[[], object]
) -> dict[str, Any]:
    """The medians of a sum, and of the floor of each party that draws so many masks.

    between: what runs after half of the rounds.
    """
    rows = []
    for turn in range(2 * TURNS):
        if turn == TURNS:
            between()
        # A client's keystream is too short to time alone.
        floors = {f"floor_{party}_ms": keystream(10 * n, length) / 10 for party, n in masks.items()}
        rows.append(play() | floors)
    row = {name: median(one[name] for one in rows) for name in rows[0]}
    for party in masks:
        masking = row[f"{party}_ms"] - (row["quantise_ms"] if party == "client" else 0.0)
        row[f"{party}_over_floor"] = masking / row[f"floor_{party}_ms"]
    return row


def compared(clients: int, length: int, dropout: float) -> dict[str, Any]:
    """Ours, the floor and Flower in turn; the medians, and what follows from them."""
    silent = round(dropout * clients)
    policy, theirs = Policy(mode="active", corrupt=0.2, dropout=dropout), dict[str, float]()
    row: dict[str, Any] = {"clients": clients, "length": length, "dropout": dropout, "dropped": silent}
    # A client adds one mask for each other member and its own; the server those of each survivor.
    row |= medians(
        partial(ours, policy, clients, length, silent),
        {"client": clients, "server": (clients - silent) * (1 + silent)},
        length,
        lambda: theirs.update(flower(clients, length, dropout)),
    )
    row["two_server"] = by_two_servers(clients, length, silent)
    row["flower"] = theirs
    row["flower_over_ours"] = {name: theirs[name] / row[name] for name in FLOWERS}
    return row


def by_two_servers(clients: int, length: int, silent: int) -> dict[str, float]:
    """The same sum by two servers, beside the keystreams that its client and its key holder draw."""
    chosen = grid(clients)
    vector = Vector(name="update", length=length, bits=32, bound=chosen.limit)
    play = partial(two_server, identities(clients), vector, chosen, partial(update, length=length), silent)
    return medians(play, {"client": 1, "key_holder": clients - silent}, length, lambda: None)


def cohort(clients: int) -> None:
    """Print what one round of a large cohort takes."""
    policy = Policy(mode="active", corrupt=0.1, dropout=0.1)
    identities(clients)
    costs, near = ours(policy, clients, 10**5, clients // 10), policy.parameters(clients).neighbours
    each = 1e3 * costs["server_ms"] / clients / near
    print(f"{clients} clients, {near} neighbours: {costs}, {each:.0f} us of the server each", flush=True)


def main() -> None:
    keep_freed_memory()  # as each command does
    ours(Policy(mode="active", corrupt=0.0, dropout=0.0), 3, 10, 0)  # loads what is loaded once
    if "--cohorts" in sys.argv:
        for clients in sys.argv[2:]:
            cohort(int(clients))
        return
    rows = [compared(*shape) for shape in itertools.product(CLIENTS, LENGTHS, DROPOUTS)]
    print(pd.json_normalize(rows).T.to_string(float_format="{:.4g}".format))
    # Four digits: more would only be noise.
    keep(
        "secagg", json.loads(json.dumps({"rows": rows}), parse_float=lambda text: float(f"{float(text):.4g}"))
    )


if __name__ == "__main__":
    main()
