"""A record of a round as a checkpoint keeps it, without a run."""

from __future__ import annotations

import math
from typing import Any

from securefl.engine.attendance import Seen


def round_record(number: int, **changes: Any) -> dict[str, Any]:
    """Client 2 was asked alone, and answered."""
    return {
        "arm": "FedAvg",
        "seed": 3,
        "round": number,
        "accuracy": 0.9,
        "loss": 1.0,
        "personal": False,
        "bytes_up": 1,
        "bytes_down": 1,
        "seconds": 1.0,
        "watt_hours": 0.5,
        "wall_seconds": 0.1,
        "retired": [],
        "epsilon": {"server": math.inf, "key-holder": 0.0, "others": math.inf},
        "selected": [2],
        "asked": 1,
        "answered": [2],
        "seen": Seen().record(),
        "ledger": {"count": 2 * number, "head": f"{number:064x}"},
        "figures": {},
        "rejected_from": {},
        "abstained": {},
        "reasons": {},
        "without_records": {},
        "clipped": {},
        "floored": {},
        "proven_cheaters": [],
        **changes,
    }
