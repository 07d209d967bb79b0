"""`securefl.calibrate`: the noise for an (epsilon, delta), as `securefl calibrate` prints it."""

from __future__ import annotations

from securefl.core.arguments import checked
from securefl.core.errors import ConfigError
from securefl.dp import calibration
from securefl.dp.calibration import Method


@checked
def calibrate(
    epsilon: float,
    delta: float,
    *,
    releases: int = 1,
    sensitivity: float = 1.0,
    method: Method = "exact",
    sampling_rate: float | None = None,
    steps: int | None = None,
) -> float:
    """The standard deviation of Gaussian noise that makes all releases together (epsilon, delta)-private.

        >>> import securefl
        >>> round(securefl.calibrate(2, 1e-5, releases=10), 3)
        6.305
        >>> securefl.calibrate(2, 1e-5, sampling_rate=0.02, steps=5000)  # DP-SGD
        2.9286

    With `sampling_rate` and `steps` it is DP-SGD's noise multiplier, of five digits, at which no ledger
    states more than epsilon after all steps. With 0.1 % less noise it would. `securefl.dp.training_epsilon`
    goes back from a noise multiplier to its epsilon.

    Args:
        epsilon, delta: of all releases together.
        releases: the number of releases.
        sensitivity: L2 sensitivity of one release. With 1 the result is a noise multiplier, as `Plan` takes
            it.
        method: "exact" composes exactly. "paper" is FedLog's theorem, which raises an error if its conditions
            do not hold.
        sampling_rate: for DP-SGD, the probability in (0, 1] with which each record enters a step, such as the
            batch size over the number of records. Both are public.
        steps: for DP-SGD, of all rounds together.

    Returns:
        The deviation, in the units of `sensitivity`. For DP-SGD, over the clipping norm.

    Raises:
        ConfigError: a value is of another type or out of range, the conditions of "paper" do not hold, or
            only one of `sampling_rate` and `steps` is given.
    """
    if (sampling_rate is None) != (steps is None):
        given, lacking = ("sampling_rate", "steps") if steps is None else ("steps", "sampling_rate")
        raise ConfigError(
            f"Expected `{lacking}` with `{given}`, got none: the noise of DP-SGD follows from both. Add it, "
            "counted over all rounds."
        )
    if sampling_rate is not None and steps is not None:
        if (releases, sensitivity, method) != (1, 1.0, "exact"):
            raise ConfigError(
                "Expected neither `releases`, `sensitivity` nor `method` with `sampling_rate`, got one: "
                "DP-SGD counts `steps`, and its clipping norm is the sensitivity. Leave it out."
            )
        return calibration.training_noise(epsilon, delta, sampling_rate=sampling_rate, steps=steps)
    return calibration.sigma(epsilon, delta, releases=releases, sensitivity=sensitivity, method=method)
