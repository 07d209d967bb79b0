"""The model of every registered protocol can be taken away, and predicts as well as its record says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.arms import ARMS
from support.every import every
from support.tiny_study import run, study, world

from securefl.core.errors import ConfigError
from securefl.study.config import Study
from securefl.study.export import taken
from securefl.training.trained import Trained, load


def one(protocol: str, options: str) -> Study:
    arm = f'[[arm]]\nname = "one"\nprotocol = "{protocol}"\n{options}\n'
    return study(
        arm,
        clients=5,
        non_private='["update", "profile", "loss", "map", "statistic", "direction", "consensus", "votes"]',
    )


def trained(of: Study, folder: Path, client: int | None = None) -> Trained:
    taken(of, folder, "one", 3, client).write(folder / "model.safetensors")
    return load(folder / "model.safetensors")


PROJECTED = [
    ("heads", 'head = "ridge"\nprojection = "random"\nwidth = 4'),
    ("heads", 'head = "prototypes"\nprojection = "leading"\nwidth = 5'),
    ("heads", 'head = "prototypes"\nbounding = { kind = "clip-l2", bound = 2.0 }'),
]


@every(("protocol", "options"), [*ARMS, *PROJECTED])
def test_predictions_are_as_good_as_the_record_says(protocol: str, options: str, tmp_path: Path) -> None:
    of = one(protocol, options)
    here, last = world(of), run(of, tmp_path).records[-1]
    if not last["personal"]:
        model = trained(of, tmp_path)
        # FLTrust's server trains on its first 100 records, and tests on the others.
        root = 100 if protocol == "fltrust" else 0
        x, y = here.problem.server_x[root:], here.problem.server_y[root:]
        found = float(np.mean(model.predict(x) == y))
        with pytest.raises(ConfigError, match="all clients have the same"):
            taken(of, tmp_path, "one", 3, 0)
    else:
        parts = [(trained(of, tmp_path, k), *here.tests[k]) for k in range(5)]
        found = float(np.mean(np.concatenate([model.predict(x) == y for model, x, y in parts])))
        if taken(of, tmp_path, "one").learnt.shared is None:
            # the whole model is shared, and clients have another one beside it
            assert np.isfinite(trained(of, tmp_path).predict(here.problem.server_x)).all()
        else:
            with pytest.raises(ConfigError, match="each client keeps"):
                trained(of, tmp_path)
    assert found == pytest.approx(last["accuracy"], abs=1e-12)
