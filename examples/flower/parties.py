"""The parties of a federation on this machine: their folders, keys, processes, and what each has learnt."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

from click.testing import CliRunner
from processes import Federation

from securefl.commands.main import cli
from securefl.study import config

SECUREFL = (sys.executable, "-m", "securefl")


def parts(study: Path) -> dict[str, tuple[str, ...]]:
    """The parties of a study: the options of `securefl party init` for each."""
    found = config.read(study)
    privacy = found.privacy
    names = {f"client-{k:04}": ("--client", str(k)) for k in range(found.data.clients or 0)}
    if privacy.sum in ("ckks", "two-server") or privacy.scores != "clear":
        names["key-holder"] = ("--key-holder",)
    return {**names, "server": ("--server",)}


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


def tell(own: Federation, names: Mapping[str, tuple[str, ...]]) -> None:
    """Print what each party released and to whom, from its own diary and ledger."""
    for name in names:
        said = json.loads(securefl("party", "status", own.folder / "parties" / name, "--json"))
        if "releases" in said:
            spent = ", ".join(f"{value} against {party}" for party, value in said["epsilon"].items())
            bare = said["sessions"]["bare"]
            print(f"{name}: sent {said['releases']['committed']} releases, epsilon {spent}")
            print(f"{name}: {bare['used']} of {bare['allowed']} sessions without noise used")
        elif name != "server":
            print(f"{name}: opened sums in {said['sessions']['count']} session, and saw no record's value")
        for missing in said["missing"]:
            print(f"  {missing['what']}: {missing['why']}")
        for refusal in said["refusals"]:
            print(f"  refused: {refusal['why']}")
    print("server: the sums over each round's clients, who answered, and no client's own value.")
    print("whoever carries the messages: who talks to whom, when, and how many bytes.")
    print(f"Report: {own.folder / 'run' / 'report.html'}")


def securefl(*words: str | Path) -> str:
    """What a command of securefl's prints. It runs in this process: to start another costs seconds."""
    done = CliRunner().invoke(cli, list(map(str, words)))
    if done.exit_code:
        sys.exit(f"securefl {' '.join(map(str, words))} failed:\n{done.output}")
    return done.stdout
