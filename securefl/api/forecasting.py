"""`securefl.forecast`: a study's epsilon, bytes and time before it runs, as `securefl plan` prints them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from securefl.api.running import console_of
from securefl.api.studies import Given, study_from
from securefl.core.memory import searches_apart
from securefl.core.release import PARTIES
from securefl.study import accounted, world
from securefl.study.config import Study
from securefl.study.forecast import Forecast, forecasts, lines, total_seconds
from securefl.training.devices import one_thread

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class Forecasts:
    """The forecast of a study. As a text it equals the output of `securefl plan`.

    Attributes:
        arms: the forecast of each arm.
        seconds: wall time of the whole study on this machine.
        accounting: the epsilon of a shared ledger now and after the study, or that each run is accounted
            alone.
    """

    study: Study
    arms: tuple[Forecast, ...]
    seconds: float
    accounting: tuple[str, ...]

    @property
    def table(self) -> pd.DataFrame:
        """A row for each arm and party: arm, party, epsilon after the whole schedule, learns (in words)."""
        import pandas as pd

        rows = [
            {"arm": own.arm, "party": party, "epsilon": own.epsilon[party], "learns": own.learns[party]}
            for own in self.arms
            for party in PARTIES
        ]
        return pd.DataFrame(rows)

    @property
    def costs(self) -> pd.DataFrame:
        """A row for each arm and round, "first" or "later": arm, round, bytes of all clients, seconds."""
        import pandas as pd

        kinds = ("first", "later")
        rows = [
            {
                "arm": own.arm,
                "round": kind,
                "bytes_up": own.bytes_up[at],
                "bytes_down": own.bytes_down[at],
                "seconds": own.seconds[at],
            }
            for own in self.arms
            for at, kind in enumerate(kinds)
        ]
        return pd.DataFrame(rows)

    def __str__(self) -> str:
        return "\n".join(lines(self.study, list(self.arms), self.accounting))

    def __repr__(self) -> str:
        return f"Forecasts({self.study.study.name!r}: {', '.join(own.arm for own in self.arms)})"


def forecast(
    study: Given,
    *,
    data: object | None = None,
    model: Any = None,
    protocol: Any = None,
    workers: int | None = None,
    progress: bool | None = None,
    trust_code: Sequence[Path | str] = (),
) -> Forecasts:
    """Forecast a study: what each party learns, at which epsilon, and the cost in bytes and time.

        >>> import securefl
        >>> found = securefl.forecast("fedlog_digits", progress=False)
        >>> found.table[["arm", "party", "epsilon"]].head(3).round(4)
                         arm       party  epsilon
        0  FedLog (unit norm)      server      inf
        1  FedLog (unit norm)  key-holder      0.0
        2  FedLog (unit norm)      others      1.0

    Arguments are those of `securefl.run`. The forecast rehearses two rounds of each arm. Their results are
    dropped, and no ledger is charged for them.

    Returns:
        The forecast of each arm, with tables and as a text.

    Raises:
        ConfigError: the study cannot run.
    """
    found = study_from(
        study, data=data, model=model, protocol=protocol, workers=workers, trust_code=trust_code
    )
    console = console_of(progress)
    with one_thread(), searches_apart():
        here = world.build(found, found.study.seeds[0])
        accounting, _ = accounted.forecast(found, here)
        made = forecasts(
            found, here, lambda arm: nullcontext() if console.quiet else console.status(f"rehearsing {arm}")
        )
    return Forecasts(found, tuple(made), total_seconds(found, made), tuple(accounting))
