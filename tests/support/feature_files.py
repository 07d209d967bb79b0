"""Digits and breast cancer as files of features, and the studies of one exchange on them."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits

from securefl.data import NAMES
from support.head_studies import model

HEADS = '[[arm]]\nname = "the rule"\nprotocol = "heads"\n'
FEDLOG = '[[arm]]\nname = "FedLog"\nprotocol = "fedlog"\n'
NETWORK = "a small network, trained on public images"


def digits(home: Path, network: str | None = NETWORK) -> Path:
    """digits.npz, and digits-test.npz of its last 500 records. Returns the first."""
    x, y = load_digits(return_X_y=True)
    named = {} if network is None else {"network": np.array(network)}
    for name, part in (("digits", slice(-500)), ("digits-test", slice(-500, None))):
        np.savez(home / f"{name}.npz", x=(x[part] / 16).astype(np.float16), y=y[part], **named)
    return home / "digits.npz"


def breast_cancer(home: Path) -> Path:
    """cancer.npz, scaled by the ranges that the data set's own description prints, and shifted by 1/4."""
    found = load_breast_cancer()
    ranges = re.findall(r"^\w[\w ()]+:\s+([\d.]+)\s+([\d.]+)\s*$", found.DESCR, re.MULTILINE)
    low, high = np.array(ranges, float).T
    scaled = (found.data - low) / (high - low) - 0.25
    np.savez(home / "cancer.npz", x=scaled, y=found.target, network=np.array("none"))
    return home / "cancer.npz"


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
