"""How one masked sum grows with its clients, in time, memory and bytes: `secagg.py --curves`."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np
from masked_round import identities, keystream, ours

from securefl.secagg import Policy
from securefl.secagg.policy import MODES, Mode

SCALES, SCALE_LENGTH = (30, 100, 300, 1000, 3000), 10**5
CURVE = (
    ("k", "neighbours"),
    ("client", "client_ms"),
    ("x floor", "client_over_floor"),
    ("server", "server_ms"),
    ("x floor", "server_over_floor"),
    ("a client", "server_ms_a_client"),
    ("CPU s", "cpu_s"),
    ("wall s", "wall_s"),
    ("MB", "memory_mb"),
    ("up", "bytes_up"),
    ("down", "bytes_down"),
)
GROWING = ("client_ms", "server_ms", "cpu_s", "memory_mb", "bytes_down")


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
    silent = clients // 10
    costs = ours(policy, clients, SCALE_LENGTH, silent)
    spent, passed = process_time() - began, perf_counter() - ticked
    memory = megabytes("VmHWM") - before
    # A client masks with its neighbours and for itself. The server removes a mask of each survivor, and about
    # nine of ten masks of each member that dropped.
    survivors, near = clients - silent, chosen.neighbours
    floor = keystream(near + 1, SCALE_LENGTH)
    removed = survivors + silent * near * survivors // clients
    floors = {"client_over_floor": (costs["client_ms"] - costs["quantise_ms"]) / floor}
    floors["server_over_floor"] = costs["server_ms"] / (floor * removed / (near + 1))
    return {
        "mode": mode,
        "clients": clients,
        "length": SCALE_LENGTH,
        "neighbours": chosen.neighbours,
        "threshold": chosen.threshold,
        "quorum": chosen.quorum,
        **costs,
        **floors,
        "server_ms_a_client": costs["server_ms"] / clients,
        "cpu_s": spent,
        "wall_s": passed,
        "memory_mb": memory,
    }


def curves(scales: Sequence[int] = SCALES, modes: Sequence[Mode] = MODES) -> dict[str, Any]:
    """Each size in a process of its own, so that its memory is its own; and the exponents of growth."""
    rows: list[dict[str, Any]] = []
    fits: dict[str, dict[str, float]] = {}
    print("\nn clients, 10 % dropped; all parties in one process, so MB holds all the clients' states")
    print(f"{'mode':12}{'n':>6}" + "".join(f"{title:>10}" for title, _ in CURVE))
    for mode in modes:
        for clients in scales:
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as one:
                row = one.submit(scaled, clients, mode).result()
            rows.append(row)
            print(f"{mode:12}{clients:>6}" + "".join(show(row[name]) for _, name in CURVE), flush=True)
        mine = [row for row in rows if row["mode"] == mode]
        if len(mine) < 2:
            continue
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
