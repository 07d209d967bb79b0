"""Flower on this machine: a SuperLink with TLS, registered nodes, and a run that is submitted to it."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

from credentials import node_key, tls
from processes import BIN, Federation

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


def alone() -> None:
    """Run this program again in a network of its own, unless it is in one: Ray listens on all interfaces."""
    if {name for _, name in socket.if_nameindex()} != {"lo"}:
        os.execvp(ALONE[0], [*ALONE, sys.executable, *sys.argv])


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def superlink(own: Federation, *, simulation: bool) -> int:
    """Start a SuperLink. Returns its port once it answers."""
    keys, port = own.folder / "keys", free_port()
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
    return port


def register(own: Federation, name: str) -> None:
    """Make a node's key, unless it has one, and have the SuperLink know it."""
    if not (own.folder / "keys" / name).exists():
        node_key(own.folder / "keys", name)
    own.run(BIN / "flwr", "supernode", "register", own.folder / "keys" / f"{name}.pub", "here")


def supernode(own: Federation, name: str, port: int, config: str, *, app: str = "", at: Path = HERE) -> None:
    """Start the node of a party: Flower's, or one that runs this app, whose module is in the folder `at`."""
    modules = os.pathsep.join([str(at), os.environ.get("PYTHONPATH", "")])
    command = (
        ("env", f"PYTHONPATH={modules}", sys.executable, HERE / "node.py", app)
        if app
        else (BIN / "flower-supernode", "--host", "127.0.0.1", "--port", str(free_port()))
    )
    own.start(
        f"node of {name}",
        *command,
        *("--superlink", f"127.0.0.1:{port}", "--root-certificates", own.folder / "keys" / "ca.pem"),
        *("--auth-supernode-private-key", own.folder / "keys" / name),
        *("--node-config", config),
    )


def submit(own: Federation, app: Path, config: str, *, simulated: int = 0) -> None:
    """Submit a run of an app with this configuration. simulated: how many nodes a simulation has."""
    nodes = ("--federation-config", f"num-supernodes={simulated}") if simulated else ()
    own.run(BIN / "flwr", "run", app, "here", "--run-config", config, *nodes)


def ended(own: Federation) -> None:
    """Wait for the end of the run. The SuperLink outlives it, whichever way it ends."""
    own.wait("superlink", lambda: ENDED in own.said("superlink"))
