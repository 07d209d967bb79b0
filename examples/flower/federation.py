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
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from click.testing import CliRunner
from credentials import node_key, tls

from securefl.commands.main import cli

HERE = Path(__file__).resolve().parent
BIN = Path(sys.executable).parent
SECUREFL = (sys.executable, "-m", "securefl")
PATIENCE = 900.0
ANSWERED = "Sent successfully"
"""What a SuperNode's log says of each reply."""
ENDED = "Finished task"
"""What a SuperLink's log says of a run that is over."""
OFFLINE = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
ALONE = (
    *("unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "--map-root-user"),
    *("sh", "-c", 'ip link set lo up && exec "$@"', "sh"),
)
"""Runs a command where there is no network but loopback, and no process but its own."""


@dataclass
class Federation:
    """Processes, their logs and the folder that all of it is in."""

    folder: Path
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        # Flower finds the programs that it starts by the path.
        path = f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}"
        own = {"FLWR_HOME": str(self.folder / "flwr"), "PYTHONUNBUFFERED": "1", "PATH": path}
        return {**os.environ, **OFFLINE, **own}

    def log(self, name: str) -> Path:
        return self.folder / "logs" / f"{name}.log"

    def start(self, name: str, *command: str | Path) -> None:
        """Start a process in a group of its own; its output goes to its log."""
        self.log(name).parent.mkdir(exist_ok=True)
        with self.log(name).open("wb") as log:
            self.processes[name] = subprocess.Popen(
                list(map(str, command)),
                env=self.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def run(self, *command: str | Path) -> str:
        """Run a command to its end, and return what it printed."""
        done = subprocess.run(list(map(str, command)), env=self.environment, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")
        return done.stdout

    def wait(self, name: str, ready: Callable[[], bool]) -> None:
        """Wait until a process is ready. Exits with its log if it ends before, or never is."""
        end = time.monotonic() + PATIENCE
        while not ready():
            code = self.processes[name].poll()
            if code is not None or time.monotonic() > end:
                how = "is not ready" if code is None else f"ended with exit code {code}"
                sys.exit(f"{name} {how}:\n{self.said(name)[-4000:]}")
            time.sleep(0.1)

    def said(self, name: str) -> str:
        return self.log(name).read_text(errors="replace")

    def kill(self, name: str) -> None:
        """Kill a process and all that it started, without a word."""
        with suppress(ProcessLookupError):
            os.killpg(self.processes[name].pid, signal.SIGKILL)

    def end(self) -> None:
        """End all processes: first by asking, so that they end what they started, then by force."""
        for process in self.processes.values():
            if process.poll() is None:
                process.terminate()
        end = time.monotonic() + 10
        for process in self.processes.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, end - time.monotonic()))
        for name, process in self.processes.items():
            self.kill(name)
            process.wait()


@contextmanager
def federation(folder: Path) -> Iterator[Federation]:
    """A federation whose processes are ended on the way out, be it by SIGTERM or Ctrl-C."""
    own = Federation(folder)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        yield own
    finally:
        # A second Ctrl-C would leave behind what the first has not ended yet.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        own.end()


def securefl(*words: str | Path) -> str:
    """What a command of securefl's prints. It runs in this process: to start another costs seconds."""
    done = CliRunner().invoke(cli, list(map(str, words)))
    if done.exit_code:
        sys.exit(f"securefl {' '.join(map(str, words))} failed:\n{done.output}")
    return done.stdout


# Parties ----------------------------------------------------------------------------------------


def make_parties(own: Federation, study: Path, names: Mapping[str, tuple[str, ...]]) -> None:
    """Folders, keys and a roster for all parties. In a deployment each operator does this for one."""
    lines = []
    for name, part in names.items():
        home, counter = own.folder / "parties" / name, own.folder / "counters" / name
        securefl("party", "init", home, study, *part, "--yes", "--counter", counter)
        lines.append(securefl("party", "enrol", home))
    roster = own.folder / "roster.jsonl"
    roster.write_text("".join(lines))
    for name in names:
        securefl("party", "pin", own.folder / "parties" / name, roster, "--yes")


def serve_parties(own: Federation, names: Mapping[str, tuple[str, ...]]) -> None:
    """Start the process of every party but the server's."""
    others = [name for name in names if name != "server"]
    for name in others:
        own.start(name, *SECUREFL, "party", "serve", own.folder / "parties" / name)
    for name in others:
        own.wait(name, lambda name=name: "serves on" in own.said(name))


# Flower -----------------------------------------------------------------------------------------


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


# Who learnt what --------------------------------------------------------------------------------


def tell(own: Federation, names: Mapping[str, tuple[str, ...]]) -> None:
    """Print what each party released and to whom, from its own diary and ledger."""
    for name in names:
        said = json.loads(securefl("party", "status", own.folder / "parties" / name, "--json"))
        if "releases" in said:
            spent = ", ".join(f"{value} against {party}" for party, value in said["epsilon"].items())
            print(f"{name}: sent {said['releases']['committed']} releases, epsilon {spent}")
        elif name != "server":
            print(f"{name}: opened sums in {said['sessions']['count']} session, and saw no record's value")
        for refusal in said["refusals"]:
            print(f"  refused: {refusal['why']}")
    print("server: the sums over each round's clients, who answered, and no client's own value.")
    print("whoever carries the messages: who talks to whom, when, and how many bytes.")
    print(f"Report: {own.folder / 'run' / 'report.html'}")


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


def parts(study: Path) -> dict[str, tuple[str, ...]]:
    """The parties of a study: the options of `securefl party init` for each."""
    from securefl.study import config

    found = config.read(study)
    privacy = found.privacy
    names = {f"client-{k:04}": ("--client", str(k)) for k in range(found.data.clients or 0)}
    if privacy.sum in ("ckks", "two-server") or privacy.scores != "clear":
        names["key-holder"] = ("--key-holder",)
    return {**names, "server": ("--server",)}


if __name__ == "__main__":
    main()
