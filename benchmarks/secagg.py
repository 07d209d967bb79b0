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

import argparse
import itertools
from functools import partial
from statistics import median
from typing import Any

from flower_secagg import flower
from kept import keep
from masked_round import grid, identities, keystream, ours, update
from two_server import two_server

from securefl.core.memory import keep_freed_memory
from securefl.secagg import Policy, Vector

CLIENTS, LENGTHS, DROPOUTS = (10, 30), (10**4, 10**5, 10**6), (0.0, 0.1, 0.3)

COLUMNS = (
    *("client_ms", "quantise_ms", "floor_client_ms", "client_over_floor", "server_ms", "floor_server_ms"),
    *("server_over_floor", "key_holder_ms", "floor_key_holder_ms", "key_holder_over_floor"),
    *("bytes_up", "bytes_down", "error"),
)
FLOWERS = ("client_ms", "server_ms", "bytes_up", "bytes_down", "error")
TURNS = 2
"""Rounds of ours before, and after, Flower's."""


def compared(clients: int, length: int, dropout: float) -> dict[str, Any]:
    """Ours, the floor and Flower in turn; the medians, and what follows from them."""
    silent = round(dropout * clients)
    survivors = clients - silent
    policy = Policy(mode="active", corrupt=0.2, dropout=dropout)
    mine: list[dict[str, float]] = []
    floors: list[tuple[float, float]] = []
    theirs: dict[str, float] = {}
    for turn in range(2 * TURNS):
        if turn == TURNS:
            theirs = flower(clients, length, dropout)
        mine.append(ours(policy, clients, length, silent))
        # The client adds one mask for each other member and its own; one keystream is too short to time.
        floors.append((keystream(10 * clients, length) / 10, keystream(survivors * (1 + silent), length)))
    row: dict[str, Any] = {"clients": clients, "length": length, "dropout": dropout, "dropped": silent}
    row |= {name: median(one[name] for one in mine) for name in mine[0]}
    row["floor_client_ms"], row["floor_server_ms"] = (median(side) for side in zip(*floors, strict=True))
    masking = row["client_ms"] - row["quantise_ms"]
    row["client_over_floor"] = masking / row["floor_client_ms"]
    row["server_over_floor"] = row["server_ms"] / row["floor_server_ms"]
    row["two_server"] = by_two_servers(clients, length, silent)
    row["flower"] = theirs
    row["flower_over_ours"] = {name: theirs[name] / row[name] for name in FLOWERS}
    return row


def by_two_servers(clients: int, length: int, silent: int) -> dict[str, float]:
    """The same sum by two servers, beside the keystreams that its client and its key holder draw."""
    chosen = grid(clients)
    vector = Vector(name="update", length=length, bits=32, bound=chosen.limit)
    mine: list[dict[str, float]] = []
    floors: list[tuple[float, float]] = []
    for _ in range(2 * TURNS):
        mine.append(two_server(identities(clients), vector, chosen, partial(update, length=length), silent))
        floors.append((keystream(10, length) / 10, keystream(clients - silent, length)))
    row = {name: median(one[name] for one in mine) for name in mine[0]}
    row["floor_client_ms"], row["floor_key_holder_ms"] = (median(side) for side in zip(*floors, strict=True))
    row["client_over_floor"] = (row["client_ms"] - row["quantise_ms"]) / row["floor_client_ms"]
    row["key_holder_over_floor"] = row["key_holder_ms"] / row["floor_key_holder_ms"]
    return row


def cohort(clients: int) -> None:
    """Print what one round of a large cohort takes."""
    policy = Policy(mode="active", corrupt=0.1, dropout=0.1)
    identities(clients)
    costs, near = ours(policy, clients, 10**5, clients // 10), policy.parameters(clients).neighbours
    each = 1e3 * costs["server_ms"] / clients / near
    print(f"{clients} clients, {near} neighbours: {costs}, {each:.0f} us of the server each", flush=True)


def shown(who: str, row: dict[str, float]) -> str:
    return f"{who:>22}  " + "  ".join(f"{name} {row[name]:.4g}" for name in COLUMNS if name in row)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="keep the figures")
    parser.add_argument("--cohorts", type=int, nargs="+", metavar="N", help="only cohorts of these sizes")
    chosen = parser.parse_args()
    keep_freed_memory()  # as each command does
    ours(Policy(mode="active", corrupt=0.0, dropout=0.0), 3, 10, 0)  # loads what is loaded once
    for clients in chosen.cohorts or ():
        cohort(clients)
    rows = []
    for shape in itertools.product(CLIENTS, LENGTHS, DROPOUTS) if not chosen.cohorts else ():
        rows.append(row := compared(*shape))
        print(shown("{} x {}, {}".format(*shape), row), shown("two servers", row["two_server"]), sep="\n")
        print(shown("Flower over ours", row["flower_over_ours"]), flush=True)
    keep("secagg", {"rows": rounded(rows)})


def rounded(value: Any) -> Any:
    """Floats to four digits: more would only be noise."""
    match value:
        case float():
            return float(f"{value:.4g}")
        case dict():
            return {name: rounded(one) for name, one in value.items()}
        case list():
            return [rounded(one) for one in value]
    return value


if __name__ == "__main__":
    main()
