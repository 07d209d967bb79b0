"""How a study uses the machine it runs on. Nothing here changes what a ledger records."""

from __future__ import annotations

from dataclasses import dataclass

from securefl.training.devices import Wanted


@dataclass(frozen=True, kw_only=True)
class RuntimeSection:
    """device: where models are computed. "auto": on a GPU where one can be used, and else on the CPU."""

    device: Wanted = "auto"
