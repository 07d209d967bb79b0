"""`securefl.calibrate`: the noise that an epsilon needs, as the command `securefl calibrate` says it."""

from __future__ import annotations

from typing import get_args

from securefl.api.arguments import number, whole
from securefl.core.errors import ConfigError
from securefl.dp import calibration
from securefl.dp.calibration import Method


def calibrate(
    epsilon: float,
    delta: float,
    *,
    releases: int = 1,
    sensitivity: float = 1.0,
    method: Method = "exact",
) -> float:
    """Return the deviation of Gaussian noise that makes all releases together (epsilon, delta)-private.

        >>> import securefl
        >>> round(securefl.calibrate(2, 1e-5, releases=10), 3)
        6.305

    Args:
        releases: how many there are in all.
        sensitivity: of one release in L2. With 1 the result is a noise multiplier, as `Plan` takes it.
        method: "exact" composes exactly; "rdp" and "pld" are checks by accountants; "paper" is FedLog's
            theorem, which is refused where it does not hold.

    Raises ConfigError for values out of range.
    """
    if method not in get_args(Method):
        raise ConfigError(f"Expected method among {', '.join(get_args(Method))}, got {method!r}.")
    return calibration.sigma(
        number("epsilon", epsilon),
        number("delta", delta),
        releases=whole("releases", releases),
        sensitivity=number("sensitivity", sensitivity),
        method=method,
    )
