"""Complete a bill of materials: the version of this package, and licences by their identifiers of SPDX.

PYTHONPATH=. python tools/bill.py BILL    # `make bill` runs it

A package that is left without an identifier is refused. SHA256SUMS beside the bill is written anew.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from release import write_sums

from securefl import __version__

STATED = {
    "Jinja2": "BSD-3-Clause",
    "contourpy": "BSD-3-Clause",
    "cycler": "BSD-3-Clause",
    "dm-tree": "Apache-2.0",
    # It packs no text of a licence. The heads of its files name one, as that of
    # https://github.com/google/differential-privacy/blob/main/python/dp_accounting/dp_accounting/__init__.py
    "dp-accounting": "Apache-2.0",
    "kiwisolver": "BSD-3-Clause",
    "mpmath": "BSD-3-Clause",
    "packaging": "Apache-2.0 OR BSD-2-Clause",
    "pathspec": "MPL-2.0",
    "prompt_toolkit": "BSD-3-Clause",
    "protobuf": "BSD-3-Clause",
    "pycryptodome": "BSD-2-Clause AND Unlicense",
    "ray": "Apache-2.0",
    "safetensors": "Apache-2.0",
    # Of its own code and of OpenBLAS, LAPACK, libgfortran and libquadmath, which its wheel packs.
    "scipy": "BSD-3-Clause AND BSD-3-Clause-Open-MPI AND GPL-3.0-or-later WITH GCC-exception-3.1 "
    "AND LGPL-2.1-or-later",
    "sympy": "BSD-3-Clause",
}
"""By package: the licence that its own files state, where its metadata use other words than SPDX's."""


def state(bill: Path) -> None:
    """Write this package's version and the licences of STATED into a bill in CycloneDX's JSON.

    Raises SystemExit if it is no bill, a package is left without an identifier, or one of STATED declares its
    own by now.
    """
    try:
        said = json.loads(bill.read_text(encoding="utf-8"))
        components = said["components"]
        said["metadata"]["component"]["version"] = __version__
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SystemExit(
            f"Expected a bill of materials with components in {bill}, got {type(error).__name__}: {error}. "
            "Make it: make bill."
        ) from None
    bare = [one for one in components if not any(map(_named, one.get("licenses", ())))]
    if differ := {one["name"] for one in bare} ^ (STATED.keys() & {one["name"] for one in components}):
        raise SystemExit(
            f"Expected packages without a licence by SPDX to be those of STATED in {__file__}, "
            f"got others: {sorted(differ)}. "
            "Read the licence in their files and state it there, or take out what declares its own."
        )
    for one in bare:  # also each of two of one name
        one["licenses"] = [{"acknowledgement": "concluded", "expression": STATED[one["name"]]}]
    bill.write_text(json.dumps(said, indent=2) + "\n", encoding="utf-8")


def _named(choice: Mapping[str, Any]) -> bool:
    """Whether this entry of `licenses` says which licence: "BSD License" is a name of several."""
    return bool(choice.get("expression") or choice.get("license", {}).get("id"))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: python tools/bill.py BILL")
    state(Path(sys.argv[1]))
    write_sums(Path(sys.argv[1]).parent)
