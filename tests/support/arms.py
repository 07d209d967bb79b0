"""Every registered protocol, with options that a tiny study runs."""

from __future__ import annotations

from importlib.metadata import entry_points

SCHEME_I = 'fraction = 1.0\nscheme = "I"'
OPTIONS = {
    # 5 of 7: so many contributors do entries need under hidden sums, at the dropout of the contracts
    "adds": ["fraction = 1.0\nfewest = 5"],
    # one round of warm-up, and a trial in round 3
    "fedcor": ["fraction = 1.0\nwarm_up = 1\ninterval = 1\nupdates = 1"],
    "fedavg_rp": ["fraction = 1.0", SCHEME_I],
    "fedlog": ["", 'body = "private"'],
    "heads": ['head = "prototypes"', 'head = "ridge"', 'head = "lda"'],
    "lg_fedavg": ["", "layers = 2"],
}
STATISTICS = ("fedlog", "heads")
"""They send sums over records of a known sensitivity per record, under the name "statistic"."""
ARMS = [
    (point.name, options)
    for point in sorted(entry_points(group="securefl.protocols"), key=lambda point: point.name)
    for options in OPTIONS.get(point.name, ["fraction = 1.0"])
]
