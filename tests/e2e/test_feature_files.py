"""Files of features in a study: read with their test part, told of in plan, report and card, and refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits
from support.command_line import said
from support.every import every
from support.feature_files import HEADS, study
from support.tiny_study import run

from securefl.core.errors import ConfigError, DataError
from securefl.study import run_report, world
from securefl.study.config import read
from securefl.training.exported import read as read_exported

NETWORK = "a small network, trained on public images"
DIGITS = 'source = "digits.npz"\ntest = "digits-test.npz"\nclasses = 10'
DEALT = (
    "Records are drawn, corrupted and dealt to clients by their places in the data set. No epsilon covers "
    "these steps: it is that of a record as it was dealt."
)
SENTENCE = (
    f"The features in digits.npz were computed by {NETWORK}; its training data are outside epsilon, and must "
    "hold none of these records."
)


def digits(home: Path, network: str | None = NETWORK) -> Path:
    """digits.npz, and digits-test.npz of its last 500 records. Returns the first."""
    x, y = load_digits(return_X_y=True)
    named = {} if network is None else {"network": np.array(network)}
    for name, part in (("digits", slice(-500)), ("digits-test", slice(-500, None))):
        np.savez(home / f"{name}.npz", x=(x[part] / 16).astype(np.float16), y=y[part], **named)
    return home / "digits.npz"


def test_digits_from_a_file_with_its_test_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_report, "figures", lambda *_: [])
    digits(tmp_path)
    path, out = study(tmp_path, DIGITS), tmp_path / "out"
    assert SENTENCE in said("plan", path).output
    done = said("run", path, "--out", out, "--workers", 1)
    assert done.exit_code == 0, done.output
    arms = {arm["name"]: arm for arm in json.loads((out / "summary.json").read_text())["arms"]}
    # Noise is fresh: of 20 runs each, 0.84 ± 0.02 and 0.78 ± 0.03. Both are 7 deviations away: below 1e-11.
    assert arms["the rule"]["final_accuracy"] > 0.7
    assert arms["FedLog"]["final_accuracy"] > 0.5
    assert all(arm["epsilon"]["server"] <= 1.0 for arm in arms.values())
    assert SENTENCE in (out / "report.html").read_text(encoding="utf-8")
    assert json.loads((out / "versions.json").read_text())["features"] == NETWORK
    exported = said("export", out, "--arm", "the rule", "-o", tmp_path / "head.safetensors")
    assert SENTENCE in " ".join(exported.output.split())
    _, card = read_exported(tmp_path / "head.safetensors")
    assert set(card["data"]["outside"]) == {SENTENCE, DEALT}


DPSGD = """
[dpsgd]
clip_norm = 1.0
noise_multiplier = 3.0
sampling_rate = 1.0
expected_batch = 65
steps = 1
optimizer = "sgd"
learning_rate = 2.0
[[arm]]
name = "DP-SGD"
protocol = "fedavg"
fraction = 1.0
"""


def test_logistic_regression_by_dpsgd_on_a_file(tmp_path: Path) -> None:
    digits(tmp_path)
    path = study(tmp_path, DIGITS, DPSGD, epsilon=8.0)
    path.write_text(path.read_text().replace("rounds = 1\n", "rounds = 3\n"), encoding="utf-8")
    found = run(read(path), tmp_path / "out").records[-1]
    # Noise is fresh: of 20 runs, 0.47 ± 0.05, and 0.1 by chance. 0.2 is 5.8 deviations away: 4e-9.
    assert found["accuracy"] > 0.2
    assert 1 < found["epsilon"]["server"] < 8


def test_a_file_that_names_no_network_is_told_of(tmp_path: Path) -> None:
    digits(tmp_path, network=None)
    nothing = world.build(read(study(tmp_path, DIGITS)), 1).marks
    assert "its training data are outside epsilon; name it" in nothing.outside[0]
    named = world.build(read(study(tmp_path, f'{DIGITS}\nnetwork = "ours"')), 1).marks
    assert "computed by ours; its training data are outside epsilon" in named.outside[0]
    assert world.build(read(study(tmp_path, f'{DIGITS}\nnetwork = "none"')), 1).marks.outside == (DEALT,)


@every(
    ("line", "message"),
    [
        ('network = "ours"', f"Expected network = '{NETWORK}', as digits.npz says, got 'ours'"),
        ('network = ""', "Expected `network` as 1 to 400 printable characters"),
        ('network = "a\\u202eb"', "Expected `network` as 1 to 400 printable characters"),
    ],
)
def test_a_network_that_contradicts_or_deceives_is_refused(line: str, message: str, tmp_path: Path) -> None:
    digits(tmp_path)
    with pytest.raises(ConfigError, match=message):
        world.build(read(study(tmp_path, f"{DIGITS}\n{line}")), 1)


def test_a_test_part_of_another_network_or_width_is_refused(tmp_path: Path) -> None:
    digits(tmp_path)
    path, test = study(tmp_path, DIGITS), tmp_path / "digits-test.npz"
    with np.load(test) as file:
        x, y = file["x"], file["y"]
    np.savez(test, x=x[:, :60], y=y)
    with pytest.raises(DataError, match=r"\(64,\).*\(60,\)"):
        world.build(read(path), 1)
    np.savez(test, x=x, y=y, network=np.array("another"))
    with pytest.raises(DataError, match="got some by 'another'"):
        world.build(read(path), 1)


def test_a_run_does_not_go_on_with_features_of_another_network(tmp_path: Path) -> None:
    digits(tmp_path)
    path = study(tmp_path, DIGITS, HEADS)
    run(read(path), tmp_path / "out")
    digits(tmp_path, network="another")
    with pytest.raises(DataError, match="other features"):
        run(read(path), tmp_path / "out")
