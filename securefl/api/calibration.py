"""`securefl.calibrate`: the Gaussian noise for an (epsilon, delta), as `securefl calibrate` prints it."""

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
    """The standard deviation of Gaussian noise that makes all releases together (epsilon, delta)-private.

        >>> import securefl
        >>> round(securefl.calibrate(2, 1e-5, releases=10), 3)
        6.305

    Args:
        epsilon, delta: of all releases together.
        releases: the number of releases.
        sensitivity: L2 sensitivity of one release. With 1 the result is a noise multiplier, as `Plan` takes
            it.
        method: "exact" composes exactly; "rdp" and "pld" are checks by accountants; "paper" is FedLog's
            theorem, which raises an error if its conditions do not hold.

    Returns:
        The deviation, in the units of `sensitivity`.

    Raises:
        ConfigError: a value is out of range, or the conditions of "paper" do not hold.
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
