"""A node that runs an app of its own machine, whatever the SuperLink ships, by flower-supernode's options.

    python examples/flower/node.py grid_app.client:app --superlink HOST:PORT --root-certificates ca.pem \
        --auth-supernode-private-key client-0000 --node-config 'securefl-party="client-0000" ...'

The app is MODULE:NAME. Its module is found as Python finds any: among installed packages, or by PYTHONPATH.
"""

from __future__ import annotations

import argparse
import logging
from importlib import import_module
from pathlib import Path

from flwr.common.config import parse_config_args

from securefl.flower import serve_node

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("app")
    parser.add_argument("--superlink", required=True)
    parser.add_argument("--root-certificates", type=Path, required=True)
    parser.add_argument("--auth-supernode-private-key", type=Path, required=True)
    parser.add_argument("--node-config", default="", help="what the app finds as its node's configuration")
    parser.add_argument("--run-config", default="", help="and as the run's, which no server chooses")
    given = parser.parse_args()
    logging.basicConfig()  # warnings alone: httpx tells of every look for messages
    module, _, name = given.app.partition(":")
    serve_node(
        getattr(import_module(module), name),
        superlink=given.superlink,
        root_certificates=given.root_certificates,
        key=given.auth_supernode_private_key,
        node_config=parse_config_args([given.node_config] if given.node_config else None),
        run_config=parse_config_args([given.run_config] if given.run_config else None),
    )
