"""Studies of a few clients whose sums are hidden, as text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from securefl.accounting.ledger import Ledger
from securefl.study.arm import arm_folder
from securefl.study.config import Study
from support.tiny_study import composed, text, with_privacy

FEDAVG = '[[arm]]\nname = "x"\nprotocol = "fedavg"\nfraction = 1.0\n'
FEDLOG = '[[arm]]\nname = "x"\nprotocol = "fedlog"\n'
RECORDS = 1258
"""Of all clients of a tiny study."""
HIDDEN = {
    "dropout": "0.34",
    "corrupt": "0.15",
    "max_retries": "1",
    "min_cohort_size": "5",
    "max_client_weight": "0.51",
}


def counts(clients: int) -> dict[str, str]:
    """Bounds of the clients' numbers of records that clip none of a tiny study, whose partition is even."""
    return {"min_num_examples": str(RECORDS // clients), "max_num_examples": str(-(-RECORDS // clients))}


def hidden(how: str, arm: str = FEDAVG, *, clients: int, rounds: int) -> str:
    said = {"sum": f'"{how}"', **HIDDEN, **counts(clients)}
    return with_privacy(text(arm, clients=clients, rounds=rounds), said)


def rows(of: Study, folder: Path) -> list[tuple[Any, ...]]:
    """All that the ledger of a run of the first arm has."""
    _, plan = composed(of)
    with Ledger(arm_folder(folder, of.arms[0], 3) / "ledger.sqlite", plan.terms()) as ledger:
        return ledger.rows()


def shares_of_noise(clients: int) -> str:
    """FedLog in one round, with shares of noise under masks."""
    said = text(FEDLOG, clients=clients, rounds=1, non_private="[]")
    own = {"noise": '"distributed"', "epsilon": "4.0", "adjacency": '"add-remove"'}
    return with_privacy(said, {"sum": '"masked"', **HIDDEN, **own})
