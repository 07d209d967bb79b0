"""A node that keeps the benchmark's app loaded: python node.py SUPERLINK CA KEY NUMBER HOUSE"""

from __future__ import annotations

import sys
from pathlib import Path

from federation_client import Either

from securefl.engines.flower.installed import serve

if __name__ == "__main__":
    superlink, authority, key, number, house = sys.argv[1:]
    serve(
        Either(),
        superlink=superlink,
        root_certificates=Path(authority),
        key=Path(key),
        node_config={"partition-id": int(number), "house": house},
    )
