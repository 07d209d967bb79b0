"""Secure aggregation beside Flower's SecAgg+ and beside the bare keystream, in one interleaved run.

    python benchmarks/secagg.py [--write] [--curves]

Prints, per number of clients, length and share that drops out before its masked input: CPU milliseconds per
client (mean over survivors) and at the server, what the client's quantising takes of it, bytes per survivor,
the largest error of the sum, and the floor: AES-256-CTR alone, for as many masks as the client or the server
has. `--curves` adds 30 to 1,000 clients, both modes; `--write` keeps the figures in
benchmarks/results/secagg.json. Without flwr its columns are left out (see flower_secagg.py).
A second line has the same sum by two servers (`sum = "two-server"`, see two_server.py): its client draws one
keystream, its key holder one for each survivor, and its server none.

Ours is the first round of a session in active mode, 20 % corrupt, on the complete graph: the machines, fed
with encoded bytes, on one thread. Encoding and decoding, the ledger's commit, the record of acts (both in
memory) and every key agreement are counted; training and the reservation of the charge are not. Flower's is
semi-honest, and its messages are not serialised. Ours and the floor are measured before and after Flower's
round.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache, partial
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean, median
from time import perf_counter, process_time
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from flower_secagg import flower
from numpy.typing import NDArray
from two_server import two_server

from securefl.accounting.events import NO_COST
from securefl.accounting.ledger import Ledger, Terms
from securefl.core.grid import Grid
from securefl.core.hiding import Hide
from securefl.core.machine import Step
from securefl.core.release import SERVER, Release, ReleaseKey
from securefl.core.wire import Header, decode
from securefl.messages import client_name
from securefl.secagg import (
    Aborted,
    Agreement,
    Channels,
    Client,
    Identity,
    Policy,
    Roster,
    Server,
    Vector,
    centred,
)
from securefl.secagg.parameters import MODES, Mode
from securefl.storage import files
from securefl.storage.journal import Journal

CLIENTS, LENGTHS, DROPOUTS = (10, 30), (10**4, 10**5, 10**6), (0.0, 0.1, 0.3)
SCALES, SCALE_LENGTH = (30, 100, 300, 1000), 10**5
CLIP = 8.0  # Flower's
TERMS = Terms(unit="record", adjacency="replace-one", delta=1e-5)
FLOOR_BYTES = 1 << 18  # the fastest here

COLUMNS = (
    ("client", "client_ms"),
    ("quantise", "quantise_ms"),
    ("floor", "floor_client_ms"),
    ("x floor", "client_over_floor"),
    ("server", "server_ms"),
    ("floor", "floor_server_ms"),
    ("x floor", "server_over_floor"),
    ("up", "bytes_up"),
    ("down", "bytes_down"),
    ("error", "error"),
)
TWO_SERVERS = (
    ("client", "client_ms"),
    ("quantise", "quantise_ms"),
    ("floor", "floor_client_ms"),
    ("x floor", "client_over_floor"),
    ("server", "server_ms"),
    ("holder", "key_holder_ms"),
    ("floor", "floor_key_holder_ms"),
    ("x floor", "key_holder_over_floor"),
    ("up", "bytes_up"),
    ("down", "bytes_down"),
    ("error", "error"),
)
FLOWERS = (
    ("client", "client_ms"),
    ("server", "server_ms"),
    ("up", "bytes_up"),
    ("down", "bytes_down"),
    ("error", "error"),
)


@dataclass
class Costs:
    """CPU seconds of each client and of the server, and the bytes of each client."""

    client: dict[str, float] = field(default_factory=dict)
    quantise: dict[str, float] = field(default_factory=dict)
    server: float = 0.0
    up: dict[str, int] = field(default_factory=dict)
    down: dict[str, int] = field(default_factory=dict)
    error: float = 0.0

    @contextmanager
    def of(self, party: str) -> Iterator[None]:
        began = process_time()
        yield
        spent = process_time() - began
        if party == SERVER:
            self.server += spent
        else:
            self.client[party] = self.client.get(party, 0.0) + spent


@lru_cache
def identities(clients: int) -> tuple[Identity, ...]:
    return tuple(Identity.generate(client_name(number)) for number in range(clients))


def update(number: int, length: int) -> NDArray[np.float64]:
    return np.random.default_rng([number, length]).uniform(-1, 1, length)


def grid(clients: int) -> Grid:
    """The finest steps whose sum fits 32 bits: for 30 clients 32 times finer than Flower's default ones."""
    halvings = ((1 << 31) - 1).bit_length() - clients.bit_length()
    return Grid(step=CLIP / 2**halvings, bound=CLIP)


class Round:
    """One aggregation whose clients take turns: one client's vector exists at a time."""

    def __init__(self, policy: Policy, clients: int, length: int, ledger: Ledger, journal: Journal) -> None:
        owners, chosen = identities(clients), policy.parameters(clients)
        self.header, self.ledger, self.journal = Header(os.urandom(32), 1, 1, 2), ledger, journal
        self.costs = Costs()
        roster = Roster(tuple(owner.member() for owner in owners))
        self.grid = grid(chosen.clients)
        vector = Vector(name="update", length=length, bits=32, bound=self.grid.limit)
        agreement = Agreement(
            header=self.header,
            roster=roster,
            parameters=chosen,
            vectors=(vector,),
            plan=bytes(32),
            task=bytes(32),
        )
        server = Server(agreement=agreement, patience=0)
        self.vector, self.mode, self.summed = vector, chosen.mode, np.zeros(length)
        self.machines: dict[str, Any] = {SERVER: server}
        self.steps: dict[str, Any] = {SERVER: server.begin()}
        self.post: dict[str, bytes] = {}
        for owner in owners:
            with self.costs.of(owner.name):
                channels = Channels(owner, roster, self.header.session)
                client = Client(agreement=agreement, channels=channels, policy=policy)
                self.machines[owner.name] = client
                self.steps[owner.name] = client.begin()

    def run(self, silent: int) -> Costs:
        """The last `silent` clients fall silent when their masked input is due."""
        names = [name for name in self.machines if name != SERVER]
        staying = names[: len(names) - silent]
        self._every(names, self._record, self._up)  # it begins, and advertises
        self._every(names, self._down, self._record, self._up)  # the roster comes, it deals
        self._every(staying, self._down, self._record, self._mask, self._up)
        if silent:
            self._server(lambda: self.machines[SERVER].deadline(self.steps[SERVER].state))
        if self.mode == "active":
            self._every(staying, self._down, self._record, self._up)  # the survivors come, it signs
            self._every(staying, self._down, self._up)  # the quorum comes, it opens
        else:
            self._every(staying, self._down, self._record, self._up)  # the survivors come, it opens
        with self.costs.of(SERVER):
            result = self.steps[SERVER].need.order.run()
        if isinstance(result, Aborted):
            raise SystemExit(f"Expected a sum, but it aborted: {result}.")
        total = centred(result.totals[self.vector.name], self.vector.bits) * self.grid.step
        self.costs.error = float(np.abs(total - self.summed).max())
        allowed = 0.51 * len(staying) * self.grid.step  # each client rounds to the nearest step
        if not self.costs.error <= allowed:
            raise SystemExit(f"Expected an error of the sum of at most {allowed}, got {self.costs.error}.")
        return self.costs

    def _every(self, names: Sequence[str], *acts: Callable[[str], None]) -> None:
        for name in names:
            for act in acts:
                act(name)

    def _record(self, name: str) -> None:
        with self.costs.of(name):
            (answer,) = self.journal.record([self.steps[name].need.order])
            self.steps[name] = self.machines[name].provide(self.steps[name].state, answer)

    def _mask(self, name: str) -> None:
        order: Hide = self.steps[name].need.order
        values = update(int(name.split("-")[1]), self.vector.length)
        self.summed += values
        began = self.costs.client[name]
        with self.costs.of(name):
            integers = self.grid.quantise(values)
        self.costs.quantise[name] = self.costs.client[name] - began
        at = self.header
        key = ReleaseKey(name, at.session, at.round, at.stage, at.attempt, self.vector.name)
        with self.costs.of(name):
            masked = order.conceal[self.vector.name](integers).numbers
        self.ledger.reserve([(key, NO_COST)])
        with self.costs.of(name):
            release = Release(key=key, unit="record", form="masked", charge=NO_COST, _numbers=masked)
            self.steps[name] = self.machines[name].provide(self.steps[name].state, (release,))

    def _up(self, name: str) -> None:
        with self.costs.of(name):
            (envelope,) = self.steps[name].out
            (data,) = self.ledger.send([(self.header, envelope.message)])
        self.steps[name] = Step(self.steps[name].state)  # what is sent is not held
        self.costs.up[name] = self.costs.up.get(name, 0) + len(data)
        self._server(lambda: self._received(SERVER, name, data))

    def _down(self, name: str) -> None:
        data = self.post.pop(name)
        self.costs.down[name] = self.costs.down.get(name, 0) + len(data)
        with self.costs.of(name):
            self.steps[name] = self._received(name, SERVER, data)

    def _received(self, party: str, sender: str, data: bytes) -> Any:
        machine, state = self.machines[party], self.steps[party].state
        expects = machine.expects(state)
        return machine.receive(state, sender, decode(data, expects.header, expects.kinds, sender))

    def _server(self, work: Callable[[], Any]) -> None:
        with self.costs.of(SERVER):
            step = work()
            self.steps[SERVER] = Step(step.state, need=step.need)
            for envelope in step.out:
                (data,) = self.ledger.send([(self.header, envelope.message)])
                self.post |= dict.fromkeys(envelope.to, data)


def ours(policy: Policy, clients: int, length: int, silent: int) -> dict[str, float]:
    """Milliseconds and bytes of one round, means over the survivors."""
    with Ledger(":memory:", TERMS) as ledger, Journal() as journal:
        costs = Round(policy, clients, length, ledger, journal).run(silent)
    stayed = list(costs.quantise)
    return {
        "client_ms": 1e3 * fmean(costs.client[name] for name in stayed),
        "quantise_ms": 1e3 * fmean(costs.quantise.values()),
        "server_ms": 1e3 * costs.server,
        "bytes_up": fmean(costs.up[name] for name in stayed),
        "bytes_down": fmean(costs.down[name] for name in stayed),
        "error": costs.error,
    }


def keystream(masks: int, length: int) -> float:
    """Milliseconds for `masks` keystreams of `length` 32-bit words, thrown away."""
    zeros, buffer = memoryview(bytes(FLOOR_BYTES)), bytearray(FLOOR_BYTES + 16)
    began = process_time()
    for _ in range(masks):
        stream = Cipher(AES(os.urandom(32)), CTR(bytes(16))).encryptor()
        for start in range(0, 4 * length, FLOOR_BYTES):
            stream.update_into(zeros[: 4 * length - start], buffer)
    return 1e3 * (process_time() - began)


def compared(clients: int, length: int, dropout: float, turns: int) -> dict[str, Any]:
    """Ours, the floor and Flower in turn; the medians, and what follows from them."""
    silent = round(dropout * clients)
    survivors = clients - silent
    policy = Policy(mode="active", corrupt=0.2, dropout=dropout)
    mine: list[dict[str, float]] = []
    floors: list[tuple[float, float]] = []
    theirs: dict[str, Any] | None = None
    for turn in range(2 * turns):
        if turn == turns:
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
    row["two_server"] = by_two_servers(clients, length, silent, turns)
    if theirs is not None:
        row["flower"] = theirs
        row["flower_over_ours"] = {name: theirs[name] / row[name] for _, name in FLOWERS}
    return row


def by_two_servers(clients: int, length: int, silent: int, turns: int) -> dict[str, float]:
    """The same sum by two servers, beside the keystreams that its client and its key holder draw."""
    chosen = grid(clients)
    vector = Vector(name="update", length=length, bits=32, bound=chosen.limit)
    mine: list[dict[str, float]] = []
    floors: list[tuple[float, float]] = []
    for _ in range(2 * turns):
        mine.append(two_server(identities(clients), vector, chosen, partial(update, length=length), silent))
        floors.append((keystream(10, length) / 10, keystream(clients - silent, length)))
    row = {name: median(one[name] for one in mine) for name in mine[0]}
    row["floor_client_ms"], row["floor_key_holder_ms"] = (median(side) for side in zip(*floors, strict=True))
    row["client_over_floor"] = (row["client_ms"] - row["quantise_ms"]) / row["floor_client_ms"]
    row["key_holder_over_floor"] = row["key_holder_ms"] / row["floor_key_holder_ms"]
    return row


def megabytes(name: str) -> float:
    """A figure of this process's memory from Linux; NaN elsewhere. getrusage would begin at the parent's."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith(name)), float("nan"))


def scaled(clients: int, mode: Mode) -> dict[str, Any]:
    """One round at 10 % corrupt and 10 % dropped: its costs, and by how much the process's memory grew."""
    policy = Policy(mode=mode, corrupt=0.1, dropout=0.1)
    identities(clients)
    chosen = policy.parameters(clients)
    before = megabytes("VmRSS")
    began, ticked = process_time(), perf_counter()
    costs = ours(policy, clients, SCALE_LENGTH, clients // 10)
    return {
        "mode": mode,
        "clients": clients,
        "length": SCALE_LENGTH,
        "neighbours": chosen.neighbours,
        "threshold": chosen.threshold,
        "quorum": chosen.quorum,
        **costs,
        "cpu_s": process_time() - began,
        "wall_s": perf_counter() - ticked,
        "memory_mb": megabytes("VmHWM") - before,
    }


CURVE = (
    ("k", "neighbours"),
    ("client", "client_ms"),
    ("server", "server_ms"),
    ("CPU s", "cpu_s"),
    ("wall s", "wall_s"),
    ("MB", "memory_mb"),
    ("up", "bytes_up"),
    ("down", "bytes_down"),
)
GROWING = ("client_ms", "server_ms", "cpu_s", "memory_mb", "bytes_down")


def curves() -> dict[str, Any]:
    """Each size in a process of its own, so that its memory is its own; and the exponents of growth."""
    rows: list[dict[str, Any]] = []
    fits: dict[str, dict[str, float]] = {}
    print("\nn clients, 10 % dropped; all parties in one process, so MB holds all the clients' states")
    print(f"{'mode':12}{'n':>6}" + "".join(f"{title:>10}" for title, _ in CURVE))
    for mode in MODES:
        for clients in SCALES:
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as one:
                row = one.submit(scaled, clients, mode).result()
            rows.append(row)
            print(f"{mode:12}{clients:>6}" + "".join(show(row[name]) for _, name in CURVE), flush=True)
        mine = [row for row in rows if row["mode"] == mode]
        sizes = np.log([row["clients"] for row in mine])
        fits[mode] = {
            name: round(float(np.polyfit(sizes, np.log([row[name] for row in mine]), 1)[0]), 2)
            for name in GROWING
        }
        print(f"{mode}: grows as n to the power of {fits[mode]}", flush=True)
    return {"rows": rows, "exponents": fits}


def show(value: float) -> str:
    return (
        f"{value:>10.1e}" if 0 < value < 1e-2 else f"{value:>10,.2f}" if value < 1e3 else f"{value:>10,.0f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="keep the figures")
    parser.add_argument("--curves", action="store_true", help="also 30 to 1,000 clients (15 minutes)")
    parser.add_argument("--turns", type=int, default=2, help="rounds of ours before, and after, Flower's")
    chosen = parser.parse_args()
    ours(Policy(mode="active", corrupt=0.0, dropout=0.0), 3, 10, 0)  # loads what is loaded once
    rows = []
    print(f"{'n':>3}{'length':>9}{'drop':>6}" + "".join(f"{title:>10}" for title, _ in COLUMNS))
    for clients, length, dropout in itertools.product(CLIENTS, LENGTHS, DROPOUTS):
        row = compared(clients, length, dropout, chosen.turns)
        rows.append(row)
        print(
            f"{clients:>3}{length:>9}{dropout:>6}" + "".join(show(row[name]) for _, name in COLUMNS),
            flush=True,
        )
        two = row["two_server"]
        print(f"{'two servers:':>18}" + "".join(f"  {title}{show(two[name])}" for title, name in TWO_SERVERS))
        if "flower" in row:
            ratios = "".join(f"  {title} {row['flower_over_ours'][name]:.3g}" for title, name in FLOWERS)
            print(f"{'Flower over ours:':>26}{ratios}", flush=True)
    found: dict[str, Any] = {"rows": rows}
    if chosen.write:
        keep(found, chosen.curves)
    if chosen.curves:
        found["curves"] = curves()
        if chosen.write:
            keep(found, chosen.curves)


def keep(found: dict[str, Any], with_curves: bool) -> None:
    path = Path(__file__).parent / "results" / "secagg.json"
    command = "python benchmarks/secagg.py --write" + (" --curves" if with_curves else "")
    files.write(path, json.dumps(rounded({"command": command, **found}), indent=1) + "\n")


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
