"""Every registered protocol, with options that a tiny study runs."""

from __future__ import annotations

from securefl.core.installed import entry_points
from support.hidden_studies import counts

SCHEME_I = 'fraction = 1.0\nscheme = "I"'
OPTIONS = {
    # 6 of 7: so many contributors do entries need under hidden sums, by the words of `hiding`
    "adds": ["fraction = 1.0\nmin_clients_per_entry = 6"],
    # one round of warm-up, and a trial in round 3
    "fedcor": ["fraction = 1.0\nwarm_up = 1\ninterval = 1\nupdates = 1"],
    "cs_fl": ["fraction = 1.0\nsparsity = 0.01", "fraction = 1.0\nsigns = true"],
    "fedavg_rp": ["fraction = 1.0", SCHEME_I],
    "fedbabu": ['fraction = 1.0\nfine_tuned = "head"\nfine_tune_epochs = 1'],
    "feddbe": ["fraction = 1.0\nmean_bound = 4.0"],
    "fedlog": ["", 'body = "private"'],
    "fedproto": ['clip = { kind = "unit-l2" }'],
    "fedrep": ["fraction = 1.0\nhead_epochs = 1"],
    "heads": ['head = "prototypes"', 'head = "ridge"', 'head = "lda"'],
    "lg_fedavg": ["", "layers = 2"],
    "pfedme": ["fraction = 1.0\nlamda = 2.0\neta = 0.5"],
    "stc": ["fraction = 1.0\np = 0.1"],
}
REPLACED = ("fedavg_rp", SCHEME_I)
"""It draws with replacement: shares of noise have no cohort to be sized for."""
NO_COHORT = (REPLACED, ("fltrust", "fraction = 1.0"))
"""Shares of noise have no cohort to be sized for: how many clients are in a sum is not known before."""
STATISTICS = ("fedlog", "fedproto", "heads")
"""They send sums over records of a known sensitivity per record, under the name "statistic"."""
ARMS = [
    (point.name, options)
    for point in sorted(entry_points(group="securefl.protocols"), key=lambda point: point.name)
    for options in OPTIONS.get(point.name, ["fraction = 1.0"])
]


KEEPING = ("cs_fl", "feddbe", "fedper", "fedproto", "fedrep", "lg_fedavg", "stc")
"""What their clients add without noise depends on what they keep, so the server must follow the protocol."""


def hiding(arm: tuple[str, str]) -> dict[str, str]:
    """Words of [privacy] by which a tiny study's 7 clients hide their sums, whatever the arm."""
    keeps = arm[0] in KEEPING or "private" in arm[1]
    # Who is drawn four times of seven stands out, and so does whom FLTrust trusts most. Stricter words would
    # draw other cohorts, and flatten the trust.
    alone = arm == REPLACED or arm[0] == "fltrust"
    return {
        "secagg": '"semi-honest"' if keeps else '"active"',
        "dropout": "0.3",
        "corrupt": "0.0" if alone else "0.15",
        "min_cohort_size": "4" if alone else "5",
        "max_client_weight": "0.97" if alone else "0.51",
        **counts(7),
    }
