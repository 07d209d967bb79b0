"""State the licences that a bill of materials lacks, and refuse one in which a package has none.

python tools/bill.py BILL    # `make bill` runs it
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

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

    Raises SystemExit if a package is left without one, or if one of STATED declares its own by now.
    """
    said = json.loads(bill.read_text(encoding="utf-8"))
    bare = {one["name"]: one for one in said["components"] if not one.get("licenses")}
    if differ := bare.keys() ^ STATED.keys():
        raise SystemExit(
            f"Expected packages without a licence to be those of STATED in {__file__}, "
            f"got others: {sorted(differ)}. "
            "Read the licence in their files and state it there, or take out what declares its own."
        )
    for name, (licence, source) in STATED.items():
        bare[name]["licenses"] = [{"license": {"acknowledgement": "concluded", "id": licence, "url": source}}]
    bill.write_text(json.dumps(said, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: python tools/bill.py BILL")
    state(Path(sys.argv[1]))
