"""Parser for lists of privacy events that a person writes in JSON."""

from __future__ import annotations

from collections import Counter
from typing import Any

from dp_accounting import DpEvent

from securefl.accounting.events import load_event
from securefl.core.errors import DataError, UnsupportedEvent
from securefl.core.reading import near

# A file of events is not trusted: its size, elements and repeats are bounded, so that a short file cannot
# keep the command busy.
LARGEST_REPEAT = 10**9
LARGEST_EVENTS = 2**24
_FIELDS = {
    "gaussian": ("noise_multiplier",),
    "poisson_gaussian": ("sampling_probability", "noise_multiplier"),
    "non_private": (),
}
"""The fields of each event, beside its count."""


def count_events(listed: object, times: int, into: Counter[DpEvent]) -> None:
    if not isinstance(listed, list):
        raise DataError(
            f"Expected a list of events, [...], got {type(listed).__name__}. Put it into brackets."
        )
    for entry in listed:
        match entry:
            # True is an int in Python, and would count as 1.
            case {"repeat": int(often), "events": inner, **rest} if (
                not rest and often is not True and 0 <= often <= LARGEST_REPEAT
            ):
                count_events(inner, times * often, into)
            case {"event": _, **_rest}:
                event, often = _event(dict(entry))
                into[event] += times * often
            case _:
                raise DataError(
                    'Expected {"event": ...}, or {"repeat": ..., "events": [...]} of a whole number, got '
                    f"{str(entry)[:80]}."
                )


def _event(entry: dict[str, Any]) -> tuple[DpEvent, int]:
    count = entry.get("count", 1)
    if type(count) is not int or not 0 <= count <= LARGEST_REPEAT:
        raise DataError(f"Expected a count from 0 to {LARGEST_REPEAT:,}, got {count!r}.")
    numbers = {k: float(v) if type(v) in (int, float) else v for k, v in entry.items() if k != "count"}
    if numbers.get("event") == "poisson_gaussian":
        numbers["count"] = 1
    try:
        return load_event(numbers), count
    except UnsupportedEvent:
        word = str(entry["event"])
        if (fields := _FIELDS.get(word)) is None:
            expected, hint = f"an event among {', '.join(_FIELDS)}", near(word, _FIELDS)
        else:
            expected = f"{word} with {', '.join((*fields, 'count'))}, numbers in their range"
            other = next((key for key in entry if key not in ("event", "count", *fields)), "")
            hint = near(other, fields)
        raise DataError(f"Expected {expected}, got {str(entry)[:120]}{hint}.") from None
