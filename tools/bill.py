"""State the licences that a bill of materials lacks, and refuse one in which a package has none.

python tools/bill.py BILL    # `make bill` runs it
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

STATED = {
    # Its metadata say "License: Apache 2.0", which is no identifier of SPDX. It packs no text of a licence.
    "dp-accounting": (
        "Apache-2.0",
        "https://github.com/google/differential-privacy/blob/main/python/dp_accounting/dp_accounting/__init__.py",
    ),
}
"""By package: the licence that the heads of its files name, and one of these files."""


def state(bill: Path) -> None:
    """Write the licences of STATED into a bill in CycloneDX's JSON.

    Raises SystemExit if it is no bill, a package is left without a licence, or one of STATED declares its own
    by now.
    """
    try:
        said = json.loads(bill.read_text(encoding="utf-8"))
        components = said["components"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SystemExit(
            f"Expected a bill of materials with components in {bill}, got {type(error).__name__}: {error}. "
            "Make it: make bill."
        ) from None
    bare = [one for one in components if not any(map(_named, one.get("licenses", ())))]
    if differ := {one["name"] for one in bare} ^ STATED.keys():
        raise SystemExit(
            f"Expected packages without a licence to be those of STATED in {__file__}, "
            f"got others: {sorted(differ)}. "
            "Read the licence in their files and state it there, or take out what declares its own."
        )
    for one in bare:  # also each of two of one name
        licence, source = STATED[one["name"]]
        one["licenses"] = [{"license": {"acknowledgement": "concluded", "id": licence, "url": source}}]
    bill.write_text(json.dumps(said, indent=2) + "\n", encoding="utf-8")


def _named(choice: Mapping[str, Any]) -> bool:
    """Whether this entry of `licenses` says which licence: an expression, an identifier of SPDX or a name."""
    licence = choice.get("license", {})
    return bool(choice.get("expression") or licence.get("id") or licence.get("name"))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: python tools/bill.py BILL")
    state(Path(sys.argv[1]))
