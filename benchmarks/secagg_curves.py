"""How one masked sum grows with its clients, in time, memory and bytes: `secagg.py --curves`."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np
from masked_round import identities, ours

from securefl.secagg import Policy
from securefl.secagg.policy import MODES, Mode

SCALES, SCALE_LENGTH = (30, 100, 300, 1000), 10**5
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
