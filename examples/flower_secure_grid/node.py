"""A node of this app alone: it runs the code of this folder, whatever the SuperLink ships.

    python node.py --superlink HOST:PORT --root-certificates ca.pem --key client-0000 --party client-0000 \
        --socket /srv/party/run/party.sock
"""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

from grid_app.client import app

from securefl.engines.flower.installed import serve
from securefl.engines.flower.secure_app import PARTY, SOCKET

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--superlink", required=True)
    parser.add_argument("--root-certificates", type=Path, required=True)
    parser.add_argument("--key", type=Path, required=True)
    parser.add_argument("--party", required=True)
    parser.add_argument("--socket", required=True)
    given = parser.parse_args()
    logging.basicConfig()  # warnings alone: httpx tells of every look for messages
    serve(
        app,
        superlink=given.superlink,
        root_certificates=given.root_certificates,
        key=given.key,
        node_config={PARTY: given.party, SOCKET: given.socket},
        ready=lambda: print(f"The SuperLink knows the node of {given.party}.", flush=True),
    )
