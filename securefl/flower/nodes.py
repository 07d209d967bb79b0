"""Which node stands for which party: by the nodes' own word, and why that is enough.

A registered node may lie about its party. What it gains is what any network has: it can be silent in the
party's place. It has not the party's keys, which the roster pins, so what it sends in a hidden sum fits to no
signature, and what others hide for the party it cannot open. Where sums or numbers are in the clear, no key
stands behind a value: there the word of a node counts, and with it who may register nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from time import monotonic, sleep
from typing import Final

from flwr.app import ConfigRecord, RecordDict
from flwr.serverapp import Grid

from securefl.core.errors import ConfigError
from securefl.flower.exchange import Post

HELLO: Final = "query.securefl_hello"
"""The type of messages that ask a node for its party."""
_RECORD, _PARTY = "securefl", "party"
_PATIENCE: Final = 30.0
_PAUSE: Final = 0.5


def said(name: str) -> RecordDict:
    """A node's answer to a hello: the party that it stands for."""
    return RecordDict({_RECORD: ConfigRecord({_PARTY: name})})


def found(
    grid: Grid,
    names: Collection[str],
    *,
    deadline: float,
    clock: Callable[[], float] = monotonic,
    pause: Callable[[float], None] = sleep,
) -> dict[str, int]:
    """Ask every node for its party, until all of `names` have one or `deadline` seconds are over.

    Returns the nodes by party, of `names` alone. A party whose node has not said so in time is absent.
    Raises ConfigError where two nodes say that they stand for the same party.
    """
    post = Post(grid, deadline=min(_PATIENCE, deadline), clock=clock, pause=pause)
    end, known = clock() + deadline, dict[int, str]()
    while True:
        new = [node for node in grid.get_node_ids() if node not in known]
        hello = RecordDict({_RECORD: ConfigRecord({})})
        for node, content in post.asked(HELLO, {str(node): (node, hello) for node in new}).items():
            known[int(node)] = _name(content)
        nodes = _by_party(known, names)
        if len(nodes) == len(names) or clock() >= end:
            return nodes
        pause(_PAUSE)


def _name(content: RecordDict) -> str:
    record = content.get(_RECORD)
    name = record.get(_PARTY) if isinstance(record, ConfigRecord) else None
    return name if isinstance(name, str) else ""


def _by_party(known: dict[int, str], names: Collection[str]) -> dict[str, int]:
    nodes: dict[str, int] = {}
    for node, name in sorted(known.items()):
        if name not in names:
            continue
        if name in nodes:
            # Neither is taken: which of them reaches the party cannot be told from their words.
            raise ConfigError(
                f"Expected one node for {name}, got two that say so: {nodes[name]} and {node}. "
                "Stop the one that does not stand beside this party."
            )
        nodes[name] = node
    return nodes
