"""A federation on this machine, from keys to who learnt what: `make federation`.

    python examples/flower/federation.py [--study STUDY] [--out DIR] [--kill NAME] [--simulation]

A SuperLink with TLS and registered node keys, a SuperNode and a party for each client and the key holder, all
of them processes of their own on loopback. Every process is ended at the end, whatever happens. Nothing waits
by the clock: a process is ready when its port answers or its log says so.

--kill NAME: kill this party's SuperNode, without a word, in the middle of round 2.
--simulation: Flower's simulation in place of the SuperLink's nodes, with the same app. Its Ray listens on all
interfaces, so it runs in a network namespace of its own (`unshare`, Linux), which has nothing but loopback.
Its processes have a namespace, too: Ray starts some in groups of their own, and all end with this one.
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

from credentials import node_key, tls
from parties import make_parties, parts, serve_parties, tell
from processes import BIN, Federation, federation

HERE = Path(__file__).resolve().parent
ANSWERED = "Sent successfully"
"""What a SuperNode's log says of each reply."""
ENDED = "Finished task"
"""What a SuperLink's log says of a run that is over."""
ALONE = (
    *("unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "--map-root-user"),
    *("sh", "-c", 'ip link set lo up && exec "$@"', "sh"),
)
"""Runs a command where there is no network but loopback, and no process but its own."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def run_config(own: Federation) -> str:
    home = own.folder
    # Stock nodes start a process for every message: on a machine that is busy, that alone takes a minute.
    return f'server="{home}/parties/server" out="{home}/run" parties="{home}/parties" deadline=120.0'


def deploy(own: Federation, names: Mapping[str, tuple[str, ...]], simulation: bool) -> None:
    """A SuperLink with TLS, registered SuperNodes or simulated ones, and the run submitted to it."""
    keys, port = own.folder / "keys", free_port()
    others = [name for name in names if name != "server"]
    tls(keys)
    own.start(
        "superlink",
        BIN / "flower-superlink",
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--ssl-ca-certfile", keys / "ca.pem"),
        *("--ssl-certfile", keys / "server.pem", "--ssl-keyfile", keys / "server.key"),
        *(("--simulation",) if simulation else ("--enable-supernode-auth",)),
        "--disable-runtime-dependency-installation",
    )
    home = own.folder / "flwr"
    home.mkdir()
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "127.0.0.1:{port}"\n'
        f'root-certificates = "{keys / "ca.pem"}"\n'
    )
    own.wait("superlink", lambda: answers(port))
    for name in [] if simulation else others:
        node_key(keys, name)
        own.run(BIN / "flwr", "supernode", "register", keys / f"{name}.pub", "here")
        path = own.folder / "parties" / name / "run" / "party.sock"
        own.start(
            f"node of {name}",
            BIN / "flower-supernode",
            *("--superlink", f"127.0.0.1:{port}", "--root-certificates", keys / "ca.pem"),
            *("--auth-supernode-private-key", keys / name),
            *("--host", "127.0.0.1", "--port", str(free_port())),
            *("--node-config", f'party="{name}" socket="{path}"'),
        )
    simulated = ("--federation-config", f"num-supernodes={len(others)}") if simulation else ()
    own.run(BIN / "flwr", "run", HERE, "here", "--run-config", run_config(own), *simulated)


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
    parser.add_argument("--kill", metavar="NAME")
    parser.add_argument("--simulation", action="store_true")
    chosen = parser.parse_args()
    if chosen.simulation and {name for _, name in socket.if_nameindex()} != {"lo"}:
        os.execvp(ALONE[0], [*ALONE, sys.executable, *sys.argv])
    folder = chosen.out.resolve()
    if folder.exists() and any(folder.iterdir()):
        sys.exit(f"Expected a new folder, got {folder}, which has files. Remove it, or name another: --out.")
    folder.mkdir(parents=True, exist_ok=True)
    names = parts(chosen.study)
    with federation(folder) as own:
        make_parties(own, chosen.study, names)
        print(f"{len(names)} parties enrolled.", flush=True)
        serve_parties(own, names)
        deploy(own, names, chosen.simulation)
        print("Running.", flush=True)
        if chosen.kill:
            kill_in_round_2(own, f"node of {chosen.kill}")
        # A SuperLink outlives its run, whichever way that ends.
        own.wait("superlink", lambda: ENDED in own.said("superlink"))
        print(told(own), end="")
        if "report " not in told(own):
            sys.exit(f"The run ended without a report:\n{own.said('superlink')[-4000:]}")
        tell(own, names)
    shutil.rmtree(folder / "keys", ignore_errors=True)


if __name__ == "__main__":
    main()
