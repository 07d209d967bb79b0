"""From a mixed table of ten holders to predictions, by commands alone, beside pooled logistic regression.

    python benchmarks/own_table.py [--records 30000] [--epsilon 1] [--folder FOLDER]

Writes loans.csv (categories, ranges, empty cells, ten branches of unequal sizes and habits), new.csv with a
fifth of the records more, and the study loans.toml. It then types the commands of docs/own-data.md, takes
their time, and prints how good the predictions of new.csv are. scikit-learn's logistic regression gets all
records of loans.csv in one place, by the same public ranges and categories, and without noise.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

import numpy as np
import pandas as pd

from securefl.report.tables import write_csv

HOLDERS = [f"branch {number}" for number in range(1, 11)]
SHARES = np.array([0.22, 0.18, 0.14, 0.11, 0.09, 0.08, 0.06, 0.05, 0.04, 0.03])
EDUCATION = ["primary", "secondary", "college", "master", "doctor"]
PURPOSE = ["car", "home", "study", "travel", "other"]
RISK = {"car": 0.0, "home": -0.9, "study": 0.3, "travel": 0.8, "other": 0.5}
STUDY = """[study]
name = "loans"
rounds = 1

[data]
source = "loans.csv"
target = "repaid"
classes = ["no", "yes"]
client_column = "branch"
ignore = ["id"]
public_num_examples = {public}
[data.columns]
branch = {{ categories = {holders} }}
age = {{ range = [18, 95], missing = 45, indicator = true }}
income = {{ range = [0, 150], missing = 40, indicator = true }}
debt = {{ range = [0, 100] }}
education = {{ categories = ["primary", "secondary", "college", "master", "doctor"], indicator = true }}
purpose = {{ categories = ["car", "home", "study", "travel", "other"] }}
member = {{ categories = [false, true] }}

[model]
kind = "mlp"
hidden = []

[local]                       # nothing is trained: a head is solved for
optimizer = "sgd"
learning_rate = 0.1
epochs = 1
batch_size = 10

[privacy]
sum = "masked"
scores = "clear"
noise = "distributed"
epsilon = {epsilon}
unit = "record"
adjacency = "add-remove"
delta = 1e-5
budget = inf
adversaries = ["server", "key-holder", "others"]
non_private = ["statistic"]
dropout = 0.1
corrupt = 0.1
min_cohort_size = 8
min_honest = 5
max_client_weight = 0.2

[[arm]]
name = "head"
protocol = "heads"
head = "lda"
"""
COMMANDS = (
    "plan loans.toml",
    "run loans.toml --out runs/loans",
    "export runs/loans -o loans.safetensors",
    "predict loans.safetensors new.csv -o predicted.csv --proba",
)
"""The commands of docs/own-data.md, behind `securefl`."""


def table(n: int, seed: int) -> pd.DataFrame:
    """n records of loans. Branches differ in size, in the ages of their clients and in what they lend for."""
    rng = np.random.default_rng(seed)
    branch = rng.choice(len(HOLDERS), n, p=SHARES)
    age = np.clip(rng.normal(38 + 2.5 * branch, 13), 18, 95).round()
    education = rng.choice(len(EDUCATION), n, p=[0.1, 0.4, 0.3, 0.15, 0.05])
    income = np.clip(rng.gamma(4, 8 + 2.5 * education), 2, 400).round(1)
    debt = np.clip(rng.exponential(18, n) + 6 * (branch % 3), 0, 160).round(1)
    tilt = np.ones((len(HOLDERS), len(PURPOSE))) + 2 * np.eye(len(HOLDERS), len(PURPOSE))
    purpose = np.array([rng.choice(PURPOSE, p=tilt[own] / tilt[own].sum()) for own in branch])
    member = rng.random(n) < 0.35
    odds = (
        0.2
        + 0.035 * np.minimum(income, 150)
        - 0.055 * np.minimum(debt, 100)
        + 0.02 * (age - 45)
        + 0.3 * education
        + 0.7 * member
        - np.vectorize(RISK.get)(purpose)
    )
    repaid = np.where(rng.random(n) < 1 / (1 + np.exp(-odds)), "yes", "no")
    frame = pd.DataFrame(
        {
            "id": np.arange(1, n + 1),
            "branch": np.array(HOLDERS)[branch],
            "age": age.astype(int),
            "income": income,
            "debt": debt,
            "education": np.array(EDUCATION)[education],
            "purpose": purpose,
            "member": member,
            "repaid": repaid,
        }
    ).astype({"age": object, "income": object, "education": object})
    for name, share in {"age": 0.04, "income": 0.08, "education": 0.05}.items():
        frame.loc[rng.random(n) < share, name] = ""
    return frame


def write(folder: Path, records: int, epsilon: float) -> None:
    """Write the two tables and the study into a folder."""
    write_csv(folder / "loans.csv", table(records, 1))
    write_csv(folder / "new.csv", table(records // 5, 2))
    holders = str(HOLDERS).replace("'", '"')
    study = STUDY.format(public=records // 10, holders=holders, epsilon=epsilon)
    (folder / "loans.toml").write_text(study)


def pooled(folder: Path) -> float:
    """The accuracy of scikit-learn's logistic regression on new.csv, from all records of loans.csv."""
    from sklearn.linear_model import LogisticRegression

    train, new = (pd.read_csv(folder / name, keep_default_na=False) for name in ("loans.csv", "new.csv"))
    fitted = LogisticRegression(max_iter=2000).fit(columns(train), train["repaid"])
    return float(fitted.score(columns(new), new["repaid"]))


def columns(frame: pd.DataFrame) -> np.ndarray:
    """The records by the study's ranges and categories, as a person would write it for scikit-learn."""
    parts = []
    for name, low, high, instead in (("age", 18, 95, 45), ("income", 0, 150, 40), ("debt", 0, 100, 0)):
        numbers = pd.to_numeric(frame[name], errors="coerce")
        parts.append(((numbers.fillna(instead).clip(low, high) - low) / (high - low)).to_numpy()[:, None])
        parts.append(numbers.isna().to_numpy()[:, None])
    for name, words in (("education", EDUCATION), ("purpose", PURPOSE), ("member", [False, True])):
        parts.append(np.array([[one == word for word in words] for one in frame[name]]))
    return np.concatenate(parts, axis=1).astype(float)


def typed(folder: Path) -> list[tuple[str, float]]:
    """Run the commands in a folder. Returns each with its seconds."""
    found = []
    for words in COMMANDS:
        began = perf_counter()
        subprocess.run(
            [sys.executable, "-m", "securefl", *words.split()], cwd=folder, check=True, capture_output=True
        )
        found.append((f"securefl {words}", perf_counter() - began))
    return found


def figures(folder: Path) -> dict[str, float]:
    """The accuracies on new.csv: of securefl's predictions, of pooled logistic regression, of a constant."""
    actual = pd.read_csv(folder / "new.csv")["repaid"]
    predicted = pd.read_csv(folder / "predicted.csv")["prediction"]
    return {
        "securefl": float((predicted == actual).mean()),
        "scikit-learn, pooled": pooled(folder),
        "the most frequent label": float(actual.value_counts(normalize=True).iloc[0]),
    }


def main(words: Sequence[str] | None = None) -> None:
    """Type the commands and print their times and the accuracies."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--records", type=int, default=30_000)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as made:
        folder = given.folder or Path(made)
        folder.mkdir(parents=True, exist_ok=True)
        write(folder, given.records, given.epsilon)
        lines = (folder / "loans.toml").read_text().splitlines()
        times = typed(folder)
        for command, seconds in times:
            print(f"{seconds:6.1f} s  {command}")
        total = sum(seconds for _, seconds in times)
        print(
            f"{total / 60:.1f} minutes, {len(times)} commands, {sum(map(bool, lines))} lines of TOML, no code"
        )
        for name, accuracy in figures(folder).items():
            print(f"{accuracy:.4f}  {name}")


if __name__ == "__main__":
    main()
