"""What concealed scores cost the demo: its FedProf arm with scores in the clear, and by each way of scoring.

    python benchmarks/encryption_overhead.py [--write]
    python benchmarks/encryption_overhead.py --bindings [--write]

Prints per client and round the extra milliseconds and bytes, whether both select the same clients, and the
largest difference of a score (in round 1, where both have the same model) beside the stated error bound.

With --bindings: what it costs that kept state is bound to the bytes of a later query (ADDS, FLTrust), as
shares of a whole run: the time in digests and checks, and the bytes over a run without them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from statistics import median
from time import perf_counter
from typing import Any
from unittest import mock

import numpy as np
from kept import keep
from studies import changed, runs

from securefl.protocols import fltrust
from securefl.protocols.adds import contributions, part
from securefl.study.arm import ArmRun

WORDS = ("ckks", "pads")
BOUND = {
    "ADDS": ("adds_lambda", "ADDS (LRP)", (contributions, part)),
    "FLTrust": ("fltrust_poisoned", "FLTrust", (fltrust,)),
}
"""A study, an arm of it, and the modules whose functions bind state."""
BINDING = ("made_in", "require_made_in", "digest_of")


def compared(clear: ArmRun, concealed: ArmRun) -> dict[str, Any]:
    """The figures of one way of scoring."""
    cohort = len(clear.records[1]["selected"])
    pairs = list(zip(clear.records, concealed.records, strict=True))
    extra_ms = median(c["wall_seconds"] - p["wall_seconds"] for p, c in pairs[1:]) / cohort * 1e3
    extra_bytes = median(c["bytes_up"] - p["bytes_up"] for p, c in pairs[1:]) / cohort
    # of the first round, in which everybody has one; those selected have a newer score already
    first = [np.array(r[0]["figures"]["divergence"][1]) for r in (clear.records, concealed.records)]
    cohort_1 = ~np.isin(clear.records[0]["figures"]["divergence"][0], clear.records[0]["selected"])
    return {
        "rounds_with_the_same_cohort": sum(p["selected"] == c["selected"] for p, c in pairs),
        "extra_ms_per_client_and_round": round(extra_ms, 2),
        "extra_bytes_up_per_client_and_round": int(extra_bytes),
        "wall_seconds": round(sum(c["wall_seconds"] for _, c in pairs), 2),
        "largest_score_difference": float(np.abs(first[0] - first[1])[cohort_1].max()),
        "error_bound": concealed.records[0]["error_bound"],
    }


def bindings(study: str, arm: str, modules: tuple[Any, ...]) -> dict[str, float]:
    """The shares of time and of bytes down that bindings take in a run of an arm."""
    spent, inside = 0.0, False

    def timed(own: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            nonlocal spent, inside
            if inside:
                return own(*given)
            inside, began = True, perf_counter()
            try:
                return own(*given)
            finally:
                inside, spent = False, spent + perf_counter() - began

        return call

    def run(replaced: Callable[[str, Any], Any]) -> list[dict[str, Any]]:
        with ExitStack() as patches:
            for module, name in ((own, name) for own in modules for name in BINDING if hasattr(own, name)):
                one = replaced(name, getattr(module, name))
                patches.enter_context(mock.patch.object(module, name, one))
            return runs(changed(study, seeds="[1]"), (arm,))[0].records

    bound = run(lambda name, own: timed(own))
    kept = spent / sum(record["wall_seconds"] for record in bound)
    # Without them: nothing is named, kept or checked.
    free = run(lambda name, own: lambda *given: {} if name == "made_in" else np.zeros(0))
    down = [sum(record["bytes_down"] for record in records) for records in (bound, free)]
    return {"time_share": float(f"{kept:.2g}"), "bytes_down_share": float(f"{down[0] / down[1] - 1:.2g}")}


def main() -> None:
    if "--bindings" in sys.argv:
        found = {name: bindings(*of) for name, of in BOUND.items()}
        for name, shares in found.items():
            print(f"{name:8} {shares}", flush=True)
        keep("encryption_overhead", {"bindings": found})
        return
    arm = ("FedProf (partial)",)
    (clear,) = runs(changed("demo", scores='"clear"'), arm)
    figures: dict[str, Any] = {
        "rounds": len(clear.records),
        "wall_seconds_clear": round(sum(record["wall_seconds"] for record in clear.records), 2),
    }
    for word in WORDS:
        (concealed,) = runs(changed("demo", scores=f'"{word}"'), arm)
        figures[word] = compared(clear, concealed)
        for name, value in figures[word].items():
            print(f"{word:8} {name:40} {value}", flush=True)
    keep("encryption_overhead", figures)


if __name__ == "__main__":
    main()
