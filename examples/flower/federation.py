"""A federation on this machine, from keys to who learnt what: `make federation`.

    python examples/flower/federation.py [--study F] [--out DIR] [--kill NAME | --installed | --simulation]

A SuperLink with TLS and registered node keys, a SuperNode and a party for each client and the key holder, all
of them processes of their own on loopback. Every process is ended at the end, whatever happens. Nothing waits
by the clock: a process is ready when its port answers or its log says so.

--installed: nodes that run the app of this folder and stay loaded, in place of Flower's SuperNodes.
--kill NAME: kill this party's SuperNode, without a word, in the middle of round 2.
--simulation: Flower's simulation in place of the SuperLink's nodes, with the same app. Its Ray listens on all
interfaces, so it runs in a network namespace of its own (`unshare`, Linux), which has nothing but loopback.
Its processes have a namespace, too: Ray starts some in groups of their own, and all end with this one.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from network import ANSWERED, alone, ended, register, submit, superlink, supernode
from parties import make_parties, parts, serve_parties, tell
from processes import Federation, federation, new_folder

HERE = Path(__file__).resolve().parent


def run_config(own: Federation) -> str:
    home = own.folder
    # Stock nodes start a process for every message: on a machine that is busy, that alone takes a minute.
    return f'server="{home}/parties/server" out="{home}/run" parties="{home}/parties" deadline=120.0'


def deploy(
    own: Federation, names: Mapping[str, tuple[str, ...]], *, simulation: bool, installed: bool
) -> None:
    """A SuperLink with TLS, registered nodes or simulated ones, and the run submitted to it."""
    app = "securefl_app.client:app" if installed else ""
    others = [name for name in names if name != "server"]
    port = superlink(own, simulation=simulation)
    for name in [] if simulation else others:
        register(own, name)
        path = own.folder / "parties" / name / "run" / "party.sock"
        supernode(own, name, port, f'party="{name}" socket="{path}"', app=app, at=HERE)
    submit(own, HERE, run_config(own), simulated=len(others) if simulation else 0)


def kill_in_round_2(own: Federation, node: str) -> None:
    """Kill a node that has answered a wave of round 2 and owes the next."""
    own.wait("superlink", lambda: "round 1:" in told(own))
    before = own.said(node).count(ANSWERED)
    own.wait(node, lambda: own.said(node).count(ANSWERED) > before)
    own.kill(node)
    print(f"Killed the {node}.", flush=True)


def told(own: Federation) -> str:
    """What the ServerApp has said so far."""
    log = own.folder / "run.log"
    return log.read_text() if log.exists() else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--study", type=Path, default=HERE / "study.toml")
    parser.add_argument("--out", type=Path, default=Path("runs/federation"))
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--kill", metavar="NAME")
    how.add_argument("--simulation", action="store_true")
    how.add_argument("--installed", action="store_true")
    chosen = parser.parse_args()
    if chosen.simulation:
        alone()
    folder = new_folder(chosen.out)
    names = parts(chosen.study)
    with federation(folder) as own:
        make_parties(own, chosen.study, names)
        print(f"{len(names)} parties enrolled.", flush=True)
        serve_parties(own, names)
        deploy(own, names, simulation=chosen.simulation, installed=chosen.installed)
        print("Running.", flush=True)
        if chosen.kill:
            kill_in_round_2(own, f"node of {chosen.kill}")
        ended(own)
        print(told(own), end="")
        if "report " not in told(own):
            sys.exit(f"The run ended without a report:\n{own.said('superlink')[-4000:]}")
        tell(own, names)
    shutil.rmtree(folder / "keys", ignore_errors=True)


if __name__ == "__main__":
    main()
