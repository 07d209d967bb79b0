"""The tiny studies that are put through it: digits among six or seven clients, a second or two each."""

from __future__ import annotations

from dataclasses import dataclass

ROUNDS = 4
_FEDAVG = '[[arm]]\nname = "FedAvg"\nprotocol = "fedavg"\nfraction = 1.0\naggregation = "partial"\n'
_FEDPROF = '[[arm]]\nname = "FedProf"\nprotocol = "fedprof"\nfraction = 0.8\n'
_FEDLOG = '[[arm]]\nname = "FedLog"\nprotocol = "fedlog"\nbody = "private"\n'
_HIDDEN = "dropout = 0.3\ncorrupt = 0.15\nmax_retries = 2\n"
_FAULTS = "[network]\nreorder = true\ndelay = 0.1\nduplicate = 0.1\ndropout = 0.1\n"
_ALL = '["server", "key-holder", "others"]'


@dataclass(frozen=True)
class Case:
    """A study. party: against whom its epsilon is finite, where it is at all. exact: whether two runs of it
    end alike; encrypted scores have noise of their own, which may turn a selection. swept: whether it is a
    sweep."""

    name: str
    text: str
    party: str = "others"
    exact: bool = True
    swept: bool = False


def _study(
    arm: str,
    privacy: str,
    *,
    local: str = "",
    non_private: str = '["update"]',
    adversaries: str = _ALL,
    extra: str = "",
) -> str:
    return f"""
[study]
name = "tiny"
rounds = {ROUNDS}
seeds = [3]
[data]
source = "digits"
clients = 7
partition = {{ kind = "iid" }}
[model]
kind = "mlp"
hidden = [8]
[local]
optimizer = "sgd"
learning_rate = 0.2
epochs = 1
batch_size = 32
{local}
[privacy]
{privacy}
delta = 1e-4
budget = inf
adversaries = {adversaries}
non_private = {non_private}
min_cohort_size = 5
min_honest = 1
max_client_weight = 0.5
{extra}
{arm}
"""


def _words(total: str, scores: str, noise: str, unit: str, adjacency: str) -> str:
    """The words of [privacy] that say how values are summed, matched and noised."""
    noised = "" if noise == "none" else "epsilon = 8.0\n"
    return (
        f'sum = "{total}"\nscores = "{scores}"\nnoise = "{noise}"\nunit = "{unit}"\n'
        f'adjacency = "{adjacency}"\n{noised}{_HIDDEN if total != "clear" else ""}'
    )


_PLAIN = ("none", "record", "replace-one")
_CENTRAL = _words("clear", "clear", "central", "client", "zero-out")
_BOUND = "update_bound = 1.0"


CASES = {
    case.name: case
    for case in (
        Case(
            "faults",
            _study(
                _FEDPROF,
                _words("clear", "clear", *_PLAIN),
                non_private='["update", "profile"]',
                extra=_FAULTS,
            ),
        ),
        Case(  # each client adds its share of the noise to a masked sum
            "masked",
            _study(
                _FEDAVG,
                _words("masked", "clear", "distributed", "client", "zero-out"),
                local=_BOUND,
                non_private="[]",
                adversaries='["server", "others"]',
            ),
        ),
        Case("ckks", _study(_FEDAVG, _words("ckks", "clear", *_PLAIN))),
        Case(
            "scores",
            _study(_FEDPROF, _words("clear", "ckks", *_PLAIN), non_private='["update", "profile"]'),
            exact=False,
        ),
        Case(
            "central",
            _study(_FEDLOG + "client_bound = 60.0\n", _CENTRAL, non_private="[]", adversaries='["others"]'),
        ),
        Case(
            "sweep",
            _study(_FEDAVG, _CENTRAL, local=_BOUND, non_private="[]", adversaries='["others"]')
            + '[sweep.grid]\n"privacy.epsilon" = [4.0, 8.0]\n',
            swept=True,
        ),
    )
}
"""By name: what hides and noises in every way that a run has, and a sweep."""
