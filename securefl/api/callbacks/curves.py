"""The public numbers of a round, by name, for experiment trackers."""

from __future__ import annotations

from math import isfinite

from securefl.study.round_events import Round


def curves(round_: Round) -> dict[str, float]:
    """The finite numbers of a round by name.

    An infinite epsilon or a diverged loss is left out, because such tools draw no point there. Such tools may
    also show their contents to other people, so numbers that no epsilon covers (`Round.private`) are left
    out.
    """
    found = {
        "accuracy": round_.accuracy,
        "loss": round_.loss,
        "megabytes": (round_.bytes_up + round_.bytes_down) / 1e6,
        **{f"epsilon/{party}": spent for party, spent in round_.epsilon.items()},
    }
    return {name: value for name, value in found.items() if value is not None and isfinite(value)}
