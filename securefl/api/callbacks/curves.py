"""What a round shows in another tool: numbers by name."""

from __future__ import annotations

from math import isfinite

from securefl.study.round_events import Round


def curves(round_: Round) -> dict[str, float]:
    """The finite numbers of a round by name.

    An infinite epsilon, or a loss that diverged, is left out: such tools draw no point there. Such tools also
    show what they have to others, so all that no epsilon covers is left out (`Round.private`).
    """
    found = {
        "accuracy": round_.accuracy,
        "loss": round_.loss,
        "megabytes": (round_.bytes_up + round_.bytes_down) / 1e6,
        **{f"epsilon/{party}": spent for party, spent in round_.epsilon.items()},
    }
    return {name: value for name, value in found.items() if value is not None and isfinite(value)}
