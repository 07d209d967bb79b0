"""Studies of one exchange of statistics on a person's own features."""

from __future__ import annotations

from pathlib import Path

from securefl.data import NAMES
from support.head_studies import model

HEADS = '[[arm]]\nname = "the rule"\nprotocol = "heads"\n'
FEDLOG = '[[arm]]\nname = "FedLog"\nprotocol = "fedlog"\n'


def study(home: Path, data: str, *arms: str, epsilon: float | str = 1.0) -> Path:
    """A study beside its file: shares of noise under masks at 20 clients. data: lines of [data]."""
    path = home / "study.toml"
    counts = "" if any(f'"{name}"' in data for name in NAMES) else "public_num_examples = 65"
    path.write_text(
        f"""
[study]
name = "features"
rounds = 1
seeds = [1]
[data]
{data}
clients = 20
{counts}
partition = {{ kind = "fedcor", concentration = 0.5 }}
{model()}
[privacy]
sum = "masked"
scores = "clear"
noise = "distributed"
unit = "record"
adjacency = "add-remove"
delta = 1e-5
budget = inf
adversaries = ["server", "key-holder", "others"]
non_private = []
epsilon = {epsilon}
dropout = 0.1
corrupt = 0.1
min_cohort_size = 16
min_honest = 10
max_client_weight = 0.1
{"".join(arms or (HEADS, FEDLOG))}""",
        encoding="utf-8",
    )
    return path
