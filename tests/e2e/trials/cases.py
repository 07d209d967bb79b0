"""The tiny studies that are put through it: digits among seven clients, a second or two each."""

from __future__ import annotations

from dataclasses import dataclass

from support.tiny_study import text, with_privacy

_FEDAVG = '[[arm]]\nname = "FedAvg"\nprotocol = "fedavg"\nfraction = 1.0\naggregation = "partial"\n'
_FEDPROF = '[[arm]]\nname = "FedProf"\nprotocol = "fedprof"\nfraction = 0.8\n'
_FEDLOG = '[[arm]]\nname = "FedLog"\nprotocol = "fedlog"\nbody = "private"\nclient_bound = 60.0\n'
_FAULTS = "[network]\nreorder = true\ndelay = 0.1\nduplicate = 0.1\ndropout = 0.1\n"
_HIDDEN = {"dropout": "0.3", "corrupt": "0.15", "max_retries": "2"}
_CLIENT = {"unit": '"client"', "adjacency": '"zero-out"', "epsilon": "8.0", "non_private": "[]"}
_CENTRAL = {**_CLIENT, "noise": '"central"', "adversaries": '["others"]'}
_SHARES = {**_CLIENT, **_HIDDEN, "noise": '"distributed"', "adversaries": '["server", "others"]'}


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


def _study(arm: str, privacy: dict[str, str], extra: str = "") -> str:
    bound = "update_bound = 1.0\n" if arm == _FEDAVG and "unit" in privacy else ""
    written = text(arm, rounds=4, clients=7, extra=extra)
    written = written.replace("epochs = 2\nbatch_size = 48\n", f"epochs = 1\nbatch_size = 32\n{bound}")
    return with_privacy(written, {"min_cohort_size": "5", **privacy}) + "\n"


CASES = {
    case.name: case
    for case in (
        Case("faults", _study(_FEDPROF, {}, _FAULTS)),
        Case("masked", _study(_FEDAVG, {"sum": '"masked"', **_SHARES})),
        Case("ckks", _study(_FEDAVG, {"sum": '"ckks"', **_HIDDEN})),
        Case("scores", _study(_FEDPROF, {"scores": '"ckks"'}), exact=False),
        Case("central", _study(_FEDLOG, _CENTRAL)),
        Case(
            "sweep",
            _study(_FEDAVG, _CENTRAL) + '[sweep.grid]\n"privacy.epsilon" = [4.0, 8.0]\n',
            swept=True,
        ),
    )
}
"""By name: what hides and noises in every way that a run has, and a sweep."""
TURNS = ("masked", "ckks", "central", "masked", "ckks", "central", "faults", "sweep", "scores")
"""In turn. Few are sweeps, which take longer; an odd number, so that a case comes at even and odd places."""
