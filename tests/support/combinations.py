"""Protocols, ways of summing and places of noise, and a tiny study of each combination of them."""

from __future__ import annotations

import json
from itertools import cycle, product

from securefl.study.config import Study, parse
from support.arms import ARMS, NO_COHORT, REPLACED, STATISTICS, hiding
from support.tiny_study import SENT, text, with_privacy

Combination = tuple[tuple[str, str], str, str]
WAYS = ("clear", "masked", "ckks", "two-server")
NOISES = ("none", "local", "distributed", "central", "key-holder")
TRUSTED = {"central": '["key-holder", "others"]', "key-holder": '["server", "others"]'}


def allowed(one: Combination) -> bool:
    arm, way, noise = one
    if noise == "key-holder" and way != "two-server":
        return False
    if arm[0] == "adds" and way != "clear" and noise == "none":  # its maps are refused
        return False
    return not (noise == "distributed" and arm in NO_COHORT)


ALL = [one for one in product(ARMS, WAYS, NOISES) if allowed(one)]


def turns() -> list[Combination]:
    """Each arm under noise of the clients and under noise of whoever sums, by turns in each way of summing.

    And in each way without noise. So each way and place of noise that can stand together do so for several
    arms, and each arm is summed in two ways.
    """
    of_clients = cycle(product(WAYS, ("local", "distributed")))
    of_totals = cycle([("two-server", "key-holder"), *product(WAYS, ("central",))])
    found = [(arm, way, "none") for arm, way in zip((a for a in ARMS if a[0] != "adds"), WAYS, strict=False)]
    for arm in ARMS:
        way, noise = next(of_clients)
        found += [(arm, way, "local" if arm in NO_COHORT else noise), (arm, *next(of_totals))]
    return found


TURNS = turns()


def study(one: Combination, rounds: int = 1) -> Study:
    """Client-level privacy of updates, record-level of statistics; the rest leaves as it is."""
    (name, options), way, noise = one
    arm = f'[[arm]]\nname = "x"\nprotocol = "{name}"\n{options}\n'
    records = name in STATISTICS
    sent = ["statistic", "counts"] if records else ["update"]
    sent += [SENT[name]] if name in SENT else []
    sent += ["size"] if "loss" in sent or one[0] == REPLACED else []
    settings = {"sum": f'"{way}"', "adversaries": TRUSTED.get(noise, '["server", "key-holder", "others"]')}
    written = text(arm, clients=7, rounds=rounds, non_private=json.dumps(sent))
    if way != "clear" or noise == "distributed":
        settings |= hiding(one[0])
    if noise != "none":
        settings |= {"noise": f'"{noise}"', "epsilon": "8.0"}
        settings |= (
            {"adjacency": '"add-remove"'} if records else {"adjacency": '"zero-out"', "unit": '"client"'}
        )
        settings |= {} if records else {"delta": "1e-2"}
        if not records:
            written = written.replace("batch_size = 48\n", "batch_size = 16\nupdate_bound = 0.5\n")
    return parse(with_privacy(written, settings))
