"""Studies of a few clients whose sums are hidden, as text."""

from __future__ import annotations

from support.tiny_study import text

FEDAVG = '[[arm]]\nname = "x"\nprotocol = "fedavg"\nfraction = 1.0\n'
FEDLOG = '[[arm]]\nname = "x"\nprotocol = "fedlog"\n'
HIDDEN = 'sum = "{}"\ndropout = 0.34\ncorrupt = 0.15\nspare = 1'


def hidden(how: str, arm: str = FEDAVG, *, clients: int, rounds: int) -> str:
    return text(arm, clients=clients, rounds=rounds).replace('sum = "clear"', HIDDEN.format(how))


def shares_of_noise(clients: int) -> str:
    """FedLog in one round, with shares of noise under masks."""
    said = text(FEDLOG, clients=clients, rounds=1, unprotected="[]")
    lines = said.replace('sum = "clear"', HIDDEN.format("masked")).splitlines()
    lines = [line for line in lines if not line.startswith(("noise =", "epsilon", "adjacency"))]
    at = lines.index("[privacy]") + 1
    own = ['noise = "distributed"', "epsilon = 4.0", 'adjacency = "add-remove"']
    return "\n".join([*lines[:at], *own, *lines[at:]])
