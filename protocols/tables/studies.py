"""The studies and figures of reproduced tables: packaged studies with other arms, and `printed.toml`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any, Final

import tomli_w

from securefl.published.table import Figure, Measure
from securefl.storage.texts import toml
from securefl.sweep.cells import put

_IN_THE_CLEAR: Final[Mapping[str, Any]] = {
    # As in the papers: no figure depends on the scheme of a sum or of a score.
    "privacy.scores": "clear",
    "privacy.min_cohort_size": 1,
    "privacy.min_honest": 1,
    # Draws with replacement give a client any weight.
    "privacy.max_client_weight": 0.5,
}

SCALING: Final[Mapping[str, Mapping[str, list[float]]]] = {
    "mnist": {"mean": [0.1307], "deviation": [0.3081]},
    "cifar10": {"mean": [0.4914, 0.4822, 0.4465], "deviation": [0.247, 0.2435, 0.2616]},
}
"""Public means and deviations of each channel, of pixels from 0 to 1."""


PRINTED: Final = toml(files("securefl.protocols.tables").joinpath("printed.toml").read_text(encoding="utf-8"))
"""The papers' figures by table and part, as printed."""


def arm(name: str, protocol: str, **options: Any) -> dict[str, Any]:
    """The TOML table [[arm]] of an arm."""
    return {"name": name, "protocol": protocol, **options}


def packaged(name: str) -> str:
    """The TOML of a packaged study of this distribution."""
    return files("securefl.protocols.studies").joinpath(f"{name}.toml").read_text(encoding="utf-8")


def printed(measures: Sequence[Measure], table: str, *parts: str) -> Mapping[str, Mapping[Measure, Figure]]:
    """The figures of a part of a paper's table, for these measures, by the paper's word for the system."""
    rows = PRINTED[table]
    for part in parts:
        rows = rows[part]
    return {
        label: {measure: _figure(own) for measure, own in zip(measures, figures, strict=False)}
        for label, figures in rows.items()
    }


def _figure(said: Any) -> Figure:
    mean, deviation = said if isinstance(said, list) else (said, None)
    return Figure(mean=None if mean == "N/A" else mean, deviation=deviation)


def study_of(text: str, arms: Sequence[Mapping[str, Any]], changes: Mapping[str, Any]) -> str:
    """The TOML of a study in the clear, with these arms and these values at dotted keys."""
    table = toml(text)
    table["arm"] = [dict(own) for own in arms]
    for key, value in {**_IN_THE_CLEAR, **changes}.items():
        put(table, key, value)
    return tomli_w.dumps(table)
