"""Tiny studies that protect a record (DP-SGD, noised numbers) or a whole client."""

from __future__ import annotations

from securefl.study.config import Study, parse
from support.tiny_study import text, with_privacy

DPSGD = """
[dpsgd]
clip_norm = 1.0
noise_multiplier = 1.2
sampling_rate = 0.1
expected_batch = 20
steps = 5
optimizer = "sgd"
learning_rate = 0.5
"""
AVERAGING = {
    "fedavg": 'fraction = 1.0\naggregation = "partial"',
    "fedprox": "fraction = 1.0",
    "fedadam": "fraction = 1.0",
    "lg_fedavg": "",
    "fedper": "",
    "fedbabu": "fine_tune_epochs = 1",
    "stc": "fraction = 1.0\np = 0.1",
    "cs_fl": "fraction = 1.0\nsparsity = 0.01",
}
FEDPROF = "fraction = 1.0\nalpha = 1.0\nclip = { outputs = 20.0, squares = 400.0 }\n"
CLIENT_LEVEL = {
    "fedproto": "",
    "fedavg": 'fraction = 1.0\naggregation = "partial"',
    "fedadam": "fraction = 1.0",
    "lg_fedavg": "",
    "fedprof": "fraction = 1.0",
}
KEY_HOLDER = {
    "sum": '"two-server"',
    "noise": '"key-holder"',
    "adversaries": '["server", "others"]',
    "dropout": "0.2",
    "corrupt": "0.0",
}
DISTRIBUTED = {"noise": '"distributed"', "dropout": "0.2", "corrupt": "0.0"}


def private(name: str, options: str, *, rounds: int = 2, extra: str = DPSGD, **privacy: str) -> Study:
    """Training with DP-SGD; all else that clients send needs noise of its own."""
    arm = f'[[arm]]\nname = "x"\nprotocol = "{name}"\n{options}\n'
    written = text(arm, rounds=rounds, clients=4, non_private="[]", extra=extra)
    written = written.replace(
        'adjacency = "replace-one"', f'adjacency = "{privacy.pop("adjacency", "add-remove")}"'
    )
    return parse(with_privacy(written, privacy))


def noised_fedprof(more: str = "", *, rounds: int = 2, **privacy: str) -> Study:
    """Epsilon 8 in all: the search for its noise takes twice as long at an epsilon of 40."""
    privacy = {"noise": '"local"', "epsilon": "8.0"} | privacy
    return private("fedprof", FEDPROF + more, rounds=rounds, **privacy)


def client_level(
    name: str = "fedavg", *, bound: str = "0.5", rounds: int = 2, more: str = "", **privacy: str
) -> Study:
    """Epsilon 8 per client in all, unless said otherwise."""
    arm = f'[[arm]]\nname = "x"\nprotocol = "{name}"\n{CLIENT_LEVEL.get(name, "fraction = 1.0")}\n{more}'
    permitted = '["profile"]' if name == "fedprof" else "[]"
    written = text(arm, rounds=rounds, clients=6, non_private=permitted)
    written = written.replace("batch_size = 48\n", f"batch_size = 16\nupdate_bound = {bound}\n")
    settings = {"unit": '"client"', "adjacency": '"zero-out"', "noise": '"central"', "epsilon": "8.0"}
    if "noise" not in privacy:
        settings["adversaries"] = '["key-holder", "others"]'
    return parse(with_privacy(written, settings | {"delta": "1e-2"} | privacy))
