"""A federation over 2,000 rounds, through kills, restarts, a rotation and a lost disk.

    python benchmarks/endurance.py [--rounds 2000] [--carrier sockets] [--seed 0] [--write]

The rounds are played in three sessions over the same ledgers. Over sockets six clients and a server add under
masks. Over Flower they are four clients, a key holder and a server: 15 messages a round in place of 36, since
its SuperLink takes a seventh of a second for each. A process is killed on every 25th round or so, over Flower
on every 80th, and started again: a client but the last one, or, over Flower, such a client's node. In the
first quarter of a session it is often the coordinator, and over Flower the SuperLink. After the first session
a client rotates its keys, and all pin the new roster. After the second one a client loses its folder: an
older copy is refused, and the newest is put back. Then the second and last quarter of each session are
compared: time, the files of all parties, memory and CPU of each process that ran through both.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import sqlite3
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pandas as pd
import psutil
from flatness import MARKS, STEADY, flatness
from kept import keep

from securefl.commands.exit_codes import ExitCode
from securefl.core.messages import client_name
from securefl.core.release import KEY_HOLDER
from securefl.deployment.spending import read as read_spending

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "examples" / "flower"))

from network import register, superlink, supernode  # noqa: E402
from parties import SECUREFL, make_parties, parts, securefl, serve_parties  # noqa: E402
from processes import Federation, federation  # noqa: E402

SESSIONS = 3
APART = {"sockets": 25, "flower": 80}
"""Rounds between kills. Flower refuses a killed node for a minute."""
PAUSE = 20
"""Seconds, as RestartSec of deploy/securefl-relay.service."""
COORDINATOR, SUPERLINK = "coordinator", "superlink"
OPTIONS: dict[str, dict[str, Any]] = {
    "sockets": {"clients": 6, "sum": "masked", "dropout": 0.34, "least": 4},
    "flower": {"clients": 4, "sum": "two-server", "dropout": 0.26, "least": 3},
}
"""Of the study, by carrier."""
NAMES = {carrier: [client_name(k) for k in range(own["clients"])] for carrier, own in OPTIONS.items()}
MORTAL = {carrier: [name for name in names if name != STEADY[carrier]] for carrier, names in NAMES.items()}
NODES = [f"node of {name}" for name in (*NAMES["flower"], KEY_HOLDER)]
STRUCK = {**MORTAL, "flower": [*MORTAL["flower"], *(f"node of {name}" for name in MORTAL["flower"])]}
EARLY = {"sockets": (COORDINATOR, None), "flower": (COORDINATOR, SUPERLINK)}
"""By carrier: what is killed by turns in a session's first quarter. None: one of STRUCK, as after it."""
ENDS = {0, ExitCode.UNLEARNT, -signal.SIGKILL}
"""Of a coordinator. Noise outweighs what so few clients learn, and what is learnt does not matter here."""
_ROUND = re.compile(r"round (\d+): ")
STUDY = """
[study]
name = "endurance"
rounds = {rounds}

[data]
source = "digits"
clients = {clients}
partition = {{ kind = "iid" }}

[model]
kind = "mlp"
hidden = []

[local]
optimizer = "sgd"
learning_rate = 0.1
epochs = 1
batch_size = 64
update_bound = 1.0

[privacy]
sum = "{sum}"
scores = "clear"
noise = "distributed"
dropout = {dropout}
corrupt = 0.0
max_retries = 1
min_cohort_size = {least}
min_honest = 2
max_client_weight = 0.51
unit = "client"
adjacency = "zero-out"
delta = 1e-5
epsilon = 8.0
budget = 100.0
adversaries = ["server", "others"]
non_private = []

[[arm]]
name = "FedAvg"
protocol = "fedavg"
fraction = 1.0
"""


# What happens ---------------------------------------------------------------------------------------


def kills(rounds: int, carrier: str, rng: np.random.Generator) -> list[tuple[int, str]]:
    """After which round of a session which process is killed."""
    apart = max(2, min(APART[carrier], rounds // 8))
    found = []
    for count, number in enumerate(range(apart, rounds - apart, apart)):
        early = EARLY[carrier][count % 2] if number <= rounds // 4 else None
        found.append((number, early or str(rng.choice(STRUCK[carrier]))))
    return found


def served(own: Federation) -> list[str]:
    """The clients, and the key holder, if there is one."""
    return sorted(folder.name for folder in (own.folder / "parties").iterdir() if folder.name != "server")


def stop(own: Federation) -> None:
    """Stop all parties, as a service does: a shell's processes in the background ignore Ctrl-C."""
    for name in served(own):
        own.processes[name].terminate()
    for name in served(own):
        own.processes[name].wait()


def strike(own: Federation, name: str) -> None:
    own.kill(name)
    own.processes[name].wait()


def home(own: Federation, name: str) -> Path:
    return own.folder / "parties" / name


def rotate(own: Federation, name: str) -> None:
    """New keys for a stopped client, and a roster with its new line that all pin."""
    roster, line = own.folder / "roster.jsonl", securefl("party", "rotate", home(own, name))
    lines = roster.read_text().splitlines(keepends=True)
    roster.write_text("".join(line if json.loads(one)["name"] == name else one for one in lines))
    for one in (*served(own), "server"):
        securefl("party", "pin", home(own, one), roster, "--yes")


def lose(own: Federation, name: str, older: Path) -> None:
    """A stopped client's folder is lost. The older copy is refused, the newest serves."""
    newest = copied(own, home(own, name), "newest")
    _put_back(own, name, older)
    own.again(name)
    if own.processes[name].wait() == 0 or "expected the ledger of its counter" not in own.said(name):
        sys.exit(f"An older copy of {name} was served:\n{own.said(name)}")
    _put_back(own, name, newest)


def recover(own: Federation) -> None:
    """Start the SuperLink again, and its nodes, which it no longer knows: its state was in memory."""
    own.again(SUPERLINK)
    own.wait(SUPERLINK, lambda: "running on" in own.said(SUPERLINK))
    for name in served(own):
        register(own, name)
        strike(own, f"node of {name}")
        own.again(f"node of {name}")


def tend(own: Federation) -> None:
    """Start nodes that ended again, `PAUSE` after their last word, as the unit of a relay does.

    A SuperLink refuses a node that was killed until that has missed its heartbeats, a minute later.
    """
    for node in NODES:
        if node not in own.processes or own.processes[node].poll() is None:
            continue
        if time.time() - own.log(node).stat().st_mtime > PAUSE:
            own.again(node)


def copied(own: Federation, folder: Path, to: str) -> Path:
    own.run("cp", "-a", folder, own.folder / to)  # a killed party leaves a socket, which shutil cannot copy
    return own.folder / to


def _put_back(own: Federation, name: str, copy: Path) -> None:
    shutil.rmtree(home(own, name))
    copied(own, copy, f"parties/{name}")
    (home(own, name) / "home.txt").unlink()


# Marks ----------------------------------------------------------------------------------------------


def sizes(*folders: Path) -> float:
    """The kB of all files in these folders."""
    total = 0
    for path in (path for folder in folders for path in folder.rglob("*")):
        with suppress(FileNotFoundError):  # a journal of SQLite's is gone meanwhile
            total += path.stat().st_size
    return total / 1e3


def mark(own: Federation, out: Path) -> dict[str, float]:
    """The memory and CPU of each process with all that it started, and the size of each party's files.

    Of the server they are its folder and its run's ledger: a report is written at the end.
    """
    found = {}
    for name, process in own.processes.items():
        if process.poll() is not None:
            continue
        with suppress(psutil.NoSuchProcess):  # it ends meanwhile
            tree = [psutil.Process(process.pid)]
            tree += tree[0].children(recursive=True)
            found[f"{name} MB"] = sum(one.memory_info().rss for one in tree) / 1e6
            found[f"{name} CPU s"] = sum(sum(one.cpu_times()[:2]) for one in tree)
    for name in served(own):
        found[f"{name} kB"] = sizes(home(own, name), own.folder / "counters" / name)
    return found | {"server kB": sizes(home(own, "server"), out / "private" / "arms")}


# A session ------------------------------------------------------------------------------------------


def lines(own: Federation, name: str) -> Iterator[str]:
    """The lines of a process's log, until it has ended."""
    with own.log(name).open() as log:
        while True:
            ended = own.processes[name].poll() is not None
            if line := log.readline():
                yield line
            elif ended:
                return
            else:
                tend(own)
                time.sleep(0.01)


def session(
    own: Federation, out: Path, words: Sequence[str], rounds: int, struck: list[tuple[int, str]]
) -> Iterator[dict[str, float]]:
    """Play a session's rounds, and kill these processes after these rounds. Yields its marks."""
    command = (*SECUREFL, "party", "coordinate", home(own, "server"), "--out", out, "--wait", "600", *words)
    due, took, last = {rounds * k // MARKS for k in range(1, MARKS + 1)}, list[float](), time.monotonic()
    number, allowed = 0, ENDS
    while number < rounds:
        own.start(COORDINATOR, *command)
        for line in lines(own, COORDINATOR):
            if (said := _ROUND.match(line)) is None:
                continue
            number, now = int(said[1]), time.monotonic()
            took.append(now - last)
            last = now
            if number in due:
                yield {"round": number, "seconds": median(took)} | mark(own, out)
                took.clear()
            if struck and number >= struck[0][0]:
                _, victim = struck.pop(0)
                strike(own, victim)
                if victim == SUPERLINK:
                    recover(own)
                    allowed = {*ENDS, ExitCode.ERROR}  # its command ends with the run
                elif victim != COORDINATOR:
                    own.again(victim)
                elif words:  # the ServerApp goes on for a while without its command
                    own.wait(SUPERLINK, lambda: not _server_apps(own))
        if own.processes[COORDINATOR].returncode not in allowed:
            sys.exit(f"The coordinator ended:\n{own.said(COORDINATOR)[-4000:]}")
        allowed = ENDS


def _server_apps(own: Federation) -> list[psutil.Process]:
    """The processes of the SuperLink's runs. It notes an end minutes later."""
    started = psutil.Process(own.processes[SUPERLINK].pid).children(recursive=True)
    return [one for one in started if "serverapp" in one.name() and one.status() != psutil.STATUS_ZOMBIE]


def endured(own: Federation, carrier: str, rounds: int, rng: np.random.Generator) -> pd.DataFrame:
    """The marks of all sessions."""
    study = own.folder / "study.toml"
    each = -(-rounds // SESSIONS)
    study.write_text(STUDY.format(rounds=each, **OPTIONS[carrier]))
    names = parts(study)
    make_parties(own, study, names)
    words = over_flower(own) if carrier == "flower" else ()
    turned, losing = map(str, rng.choice(MORTAL[carrier], 2, replace=False))
    marks = []
    for number in range(SESSIONS):
        if number == 1:
            rotate(own, turned)
            older = copied(own, home(own, losing), "older")
        elif number == 2:
            lose(own, losing, older)
        serve_parties(own, names)
        for one in session(own, out_of(own, number), words, each, kills(each, carrier, rng)):
            marks.append({"carrier": carrier, "session": number + 1, **one})
            print(marks[-1]["session"], one["round"], f"{one['seconds']:.2f} s", flush=True)
        stop(own)
    return pd.DataFrame(marks)


def out_of(own: Federation, number: int) -> Path:
    return own.folder / f"run-{number}"


def over_flower(own: Federation) -> tuple[str, ...]:
    """Start a SuperLink, and a node for each party but the server. Returns the options of the coordinator."""
    port = superlink(own, simulation=False)
    for name in served(own):
        register(own, name)
        config = f'securefl-party="{name}" securefl-socket="{home(own, name) / "run" / "party.sock"}"'
        supernode(own, name, port, config, app="securefl.flower.studies:client_app")
    return "--flower", "here"


# What was lost --------------------------------------------------------------------------------------


def charges(own: Federation, carrier: str) -> pd.DataFrame:
    """For each client the rounds that it answered, its ledger's charges, and the server's orders to it."""
    outs = [out_of(own, number) for number in range(SESSIONS)]
    ledgers = [out / "private" / "arms" / "fedavg" / "seed-0" / "ledger.sqlite" for out in outs]
    spent = pd.concat([pd.DataFrame(map(vars, read_spending(out))) for out in outs])
    rows = [
        {
            "client": name,
            "answered": int(spent.loc[spent["client"] == k, "answered"].sum()),
            "charged": _rows(home(own, name) / "ledger.sqlite", name, "committed IS NOT NULL"),
            "ordered": sum(_rows(ledger, name) for ledger in ledgers),
        }
        for k, name in enumerate(NAMES[carrier])
    ]
    return pd.DataFrame(rows)


def _rows(ledger: Path, holder: str, which: str = "TRUE") -> int:
    with closing(sqlite3.connect(ledger)) as books:
        query = f"SELECT COUNT(*) FROM releases WHERE name = 'update' AND holder = ? AND {which}"
        return int(books.execute(query, (holder,)).fetchone()[0])


def main() -> None:
    form = argparse.RawDescriptionHelpFormatter
    given = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    given.add_argument("--rounds", type=int, default=2000, help="of all three sessions (2000)")
    given.add_argument("--carrier", choices=STRUCK, default="sockets", help="of messages (sockets)")
    given.add_argument("--seed", type=int, default=0, help="who is killed, rotates and loses its folder (0)")
    given.add_argument("--write", action="store_true", help="keep the figures in benchmarks/results")
    asked = given.parse_args()
    if asked.rounds < (least := SESSIONS * MARKS):
        given.error(f"expected {least} rounds or more, a mark each, got {asked.rounds}")
    os.environ["MALLOC_MMAP_THRESHOLD_"] = "262144"  # as deploy/securefl-party.service has it, and why
    with tempfile.TemporaryDirectory() as folder, federation(Path(folder)) as own:
        marks = endured(own, asked.carrier, asked.rounds, np.random.default_rng(asked.seed))
        counted = charges(own, asked.carrier)
    options = f"endurance.py --carrier {asked.carrier} --rounds {asked.rounds} --seed {asked.seed}"
    keep(f"endurance_{asked.carrier}", marks.round(3), command=options)
    keep(f"endurance_{asked.carrier}_charges", counted, command=options)
    flat = flatness(marks, asked.carrier)
    print(counted.to_string(index=False), flat.to_string(index=False), sep="\n")
    wrong = counted[(counted["charged"] < counted["answered"]) | (counted["charged"] > counted["ordered"])]
    steep = flat[~(flat["quarter_4"] <= flat["most"])]  # what was not measured is not flat either
    if len(wrong) or len(steep):
        sys.exit(f"Lost, or charged without an order:\n{wrong}\nNot flat:\n{steep}")


if __name__ == "__main__":
    main()
