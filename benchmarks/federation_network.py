"""Carriers of the federation benchmark that are processes: Flower's simulation, its nodes, installed nodes.

They run where there is no network but loopback and no process but theirs, so that all CPU time is the run's.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from federation_client import CLIENTS
from federation_rounds import Mark

from securefl.core.messages import client_name
from securefl.core.release import KEY_HOLDER
from securefl.deployment.local import socket_of
from securefl.flower.secure_app import PARTY, SOCKET

HERE = Path(__file__).resolve().parent
APP = HERE / "federation_app"
sys.path.append(str(HERE.parent / "examples" / "flower"))

from network import ENDED, alone, register, submit, superlink, supernode  # noqa: E402
from processes import Federation, federation  # noqa: E402

__all__ = ["alone", "installed_nodes", "simulation", "stock_nodes"]
Run = Callable[[str, int, int], list[Mark]]
"""From how sums are summed, the values of the model and the rounds to the marks."""


def run(own: Federation, how: str, size: int, rounds: int, *, simulated: int = 0) -> list[Mark]:
    """One run, submitted to the SuperLink. RuntimeError for one that ended without marks."""
    out, before = own.folder / "marks.json", own.said("superlink").count(ENDED)
    out.unlink(missing_ok=True)
    config = f'how="{how}" size={size} rounds={rounds} house="{own.folder}/house" out="{out}"'
    submit(own, APP, config, simulated=simulated)
    own.wait("superlink", lambda: own.said("superlink").count(ENDED) > before)
    if not out.exists():
        raise RuntimeError(own.said("superlink")[-2000:])
    return [(cpu, wall) for cpu, wall in json.loads(out.read_text())]


def nodes_of(how: str) -> int:
    return CLIENTS + (how == "two-server")


@contextmanager
def started(*, simulated: bool) -> Iterator[tuple[Federation, int]]:
    # Flower's processes find the app's modules here.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    with tempfile.TemporaryDirectory() as folder, federation(Path(folder)) as own:
        yield own, superlink(own, simulation=simulated)


@contextmanager
def simulation() -> Iterator[Run]:
    with started(simulated=True) as (own, _):
        yield lambda how, size, rounds: run(own, how, size, rounds, simulated=nodes_of(how))


@contextmanager
def _nodes(app: str) -> Iterator[Run]:
    there = list[int]()
    with started(simulated=False) as (own, port):

        def with_nodes(how: str, size: int, rounds: int) -> list[Mark]:
            # The key holder's node comes last, and only when it has something to do.
            for number in range(len(there), nodes_of(how)):
                register(own, f"node-{number}")
                name = client_name(number) if number < CLIENTS else KEY_HOLDER
                config = f'{PARTY}="{name}" {SOCKET}="{socket_of(own.folder / "house", name)}"'
                supernode(own, f"node-{number}", port, config, app=app, at=HERE)
                there.append(number)
            return run(own, how, size, rounds)

        yield with_nodes


def stock_nodes() -> AbstractContextManager[Run]:
    return _nodes("")


def installed_nodes() -> AbstractContextManager[Run]:
    return _nodes("federation_client:app")
