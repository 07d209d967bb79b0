"""A callback that logs finished rounds to MLflow."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from securefl.api.callbacks.curves import curves
from securefl.core.errors import ConfigError
from securefl.core.installed import needing
from securefl.study.round_events import Round

if TYPE_CHECKING:
    from mlflow import MlflowClient


class MLflow:
    """A callback, and a context: each arm and seed is a run of an MLflow experiment.

        with MLflow("http://localhost:5000", experiment="demo") as flow:
            securefl.run("demo", callback=flow)

    A resumed run continues the open MLflow run of its arm and seed, so give each study an experiment of its
    own. MLflow's global state is not changed. Raises ConfigError if MLflow is not installed.
    """

    def __init__(self, uri: str, *, experiment: str = "securefl") -> None:
        with needing("mlflow", "to log to MLflow"):
            from mlflow import MlflowClient
        self._uri = uri
        with self._explaining():
            self._client: MlflowClient = MlflowClient(tracking_uri=uri)
            self._experiment = self._named(experiment)
        self._runs: dict[tuple[str, int], str] = {}

    def _named(self, experiment: str) -> str:
        found: Any = self._client.get_experiment_by_name(experiment)
        return str(self._client.create_experiment(experiment) if found is None else found.experiment_id)

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        """Turn MLflow's errors, such as those of an unreachable server, into a ConfigError."""
        from mlflow.exceptions import MlflowException

        try:
            yield
        except (MlflowException, ImportError) as error:
            raise ConfigError(
                f"Expected MLflow at {self._uri} to accept a round's numbers, got: {error} Fix it, and run "
                "again: finished rounds are kept."
            ) from None

    def __call__(self, arm: str, seed: int, round_: Round) -> None:
        with self._explaining():
            self._show(arm, seed, round_)

    def _show(self, arm: str, seed: int, round_: Round) -> None:
        if (arm, seed) not in self._runs:
            left = None if round_.number == 1 else self._left(arm, seed)
            self._runs[arm, seed] = left or self._begun(arm, seed)
        run = self._runs[arm, seed]
        for name, value in curves(round_).items():
            self._client.log_metric(run, name, value, step=round_.number)
        if round_.last:
            self._client.set_terminated(run)
            del self._runs[arm, seed]

    def _left(self, arm: str, seed: int) -> str | None:
        """The newest open MLflow run of this arm and seed."""
        quoted = arm.replace("'", "\\'")
        where = f"tags.`securefl.arm` = '{quoted}' and tags.`securefl.seed` = '{seed}' and status = 'RUNNING'"
        found: Any = self._client.search_runs([self._experiment], where, max_results=1)
        return str(found[0].info.run_id) if found else None

    def _begun(self, arm: str, seed: int) -> str:
        tags = {"securefl.arm": arm, "securefl.seed": str(seed)}
        made: Any = self._client.create_run(self._experiment, run_name=f"{arm}, seed {seed}", tags=tags)
        run = str(made.info.run_id)
        self._client.log_param(run, "arm", arm)
        self._client.log_param(run, "seed", seed)
        return run

    def close(self) -> None:
        """Close the client. Unfinished MLflow runs stay open, so that the same call can continue them."""
        self._runs.clear()

    def __enter__(self) -> MLflow:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
