"""Flower's FedAvg on masked sums, on this machine: a SuperLink and five nodes, or Flower's simulation.

    python examples/flower_secure_grid/federation.py [--installed | --simulation] [--rounds N] [--out DIR]

By default the nodes are Flower's SuperNodes, which run the app that the SuperLink ships. --installed: nodes
that run the app of this folder, and stay loaded. --simulation: Flower's simulation, in a network of its own.
Processes, TLS and keys are those of examples/flower.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "flower"))

from grid_app.task import CLIENTS  # noqa: E402
from network import alone, ended, register, submit, superlink, supernode  # noqa: E402
from party import enrol  # noqa: E402
from processes import Federation, federation, new_folder  # noqa: E402

NAMES = [f"client-{k:04}" for k in range(CLIENTS)]


def make_parties(own: Federation) -> None:
    """Keys for all, and the roster in everybody's folder. In a deployment each owner does this for one."""
    folders = {name: own.folder / "parties" / name for name in [*NAMES, "server"]}
    lines = "\n".join(enrol(folder, name) for name, folder in folders.items())
    for folder in folders.values():
        (folder / "roster.jsonl").write_text(lines)


def serve_parties(own: Federation) -> None:
    for name in NAMES:
        own.start(name, sys.executable, HERE / "party.py", "serve", own.folder / "parties" / name, name)
    for name in NAMES:
        own.wait(name, lambda name=name: "serves on" in own.said(name))


def nodes(own: Federation, port: int, installed: bool) -> None:
    for number, name in enumerate(NAMES):
        register(own, name)
        socket = own.folder / "parties" / name / "run" / "party.sock"
        config = f'partition-id={number} securefl-party="{name}" securefl-socket="{socket}"'
        supernode(own, name, port, config, app="grid_app.client:app" if installed else "", at=HERE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--installed", action="store_true")
    how.add_argument("--simulation", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("runs/secure_grid"))
    chosen = parser.parse_args()
    if chosen.simulation:
        alone()
    folder = new_folder(chosen.out)
    out = folder / "result.json"
    config = f'out="{out}" rounds={chosen.rounds} securefl.deadline=120.0'
    with federation(folder) as own:
        port = superlink(own, simulation=chosen.simulation)
        if chosen.simulation:
            submit(own, HERE, f'{config} securefl.parties="{folder}/all"', simulated=CLIENTS)
        else:
            make_parties(own)
            serve_parties(own)
            nodes(own, port, chosen.installed)
            submit(own, HERE, f'{config} securefl.server="{folder}/parties/server"')
        print("Running.", flush=True)
        ended(own)
        if not out.exists():
            sys.exit(f"The run ended without a result:\n{own.said('superlink')[-4000:]}")
    result = json.loads(out.read_text())
    for number, metrics in result["evaluate"].items():
        loss = result["train"][number]["loss"]
        print(f"round {number}: loss {loss:.3f}, accuracy {metrics['accuracy']:.3f}, of sums alone")
    print(f"model {result['model'][:16]}")
    shutil.rmtree(folder / "keys", ignore_errors=True)


if __name__ == "__main__":
    main()
