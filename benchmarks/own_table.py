"""From a mixed table of ten holders to predictions, by commands alone, beside pooled logistic regression.

    python benchmarks/own_table.py [EPSILON]
    python benchmarks/own_table.py --tables FOLDER    # only the tables and the study of docs/own-data.md

Writes loans.csv (categories, ranges, empty cells, ten branches of unequal sizes and habits), new.csv with a
fifth of the records more, and the study examples/loans.toml. It then types the commands of docs/own-data.md,
takes their time, and prints how good the predictions of new.csv are. scikit-learn's logistic regression gets
all records of loans.csv in one place, by the same public ranges and categories, and without noise.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

import numpy as np
import pandas as pd
from kept import DOCS

from securefl.report.tables import write_csv

HOLDERS = [f"branch {number}" for number in range(1, 11)]
SHARES = np.array([0.22, 0.18, 0.14, 0.11, 0.09, 0.08, 0.06, 0.05, 0.04, 0.03])
EDUCATION = ["primary", "secondary", "college", "master", "doctor"]
PURPOSE = ["car", "home", "study", "travel", "other"]
RISK = {"car": 0.0, "home": -0.9, "study": 0.3, "travel": 0.8, "other": 0.5}
STUDY = (DOCS.parent / "examples" / "loans.toml").read_text(encoding="utf-8")
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
    study = STUDY.replace("public_num_examples = 3000", f"public_num_examples = {records // 10}")
    (folder / "loans.toml").write_text(study.replace("epsilon = 1.0", f"epsilon = {epsilon}"))


def pooled(folder: Path) -> float:
    """The accuracy of scikit-learn's logistic regression on new.csv, from all records of loans.csv."""
    from sklearn.linear_model import LogisticRegression

    train, new = (pd.read_csv(folder / name, keep_default_na=False) for name in ("loans.csv", "new.csv"))
    fitted = LogisticRegression(max_iter=2000).fit(columns(train), train["repaid"])
    return float(fitted.score(columns(new), new["repaid"]))


def columns(frame: pd.DataFrame) -> pd.DataFrame:
    """The records by the study's ranges and categories, as a person would write it for scikit-learn."""
    ranges = pd.DataFrame({"age": [18, 95, 45], "income": [0, 150, 40], "debt": [0, 100, 0]}).T
    low, high, instead = (ranges[at] for at in ranges)
    numbers = frame[list(ranges.index)].apply(pd.to_numeric, errors="coerce")
    scaled = (numbers.fillna(instead).clip(low, high, axis=1) - low) / (high - low)
    words = pd.get_dummies(frame[["education", "purpose", "member"]].astype(str))
    return pd.concat([scaled, numbers.isna().add_suffix(" missing"), words], axis=1).astype(float)


def figures(folder: Path) -> pd.Series:
    """The accuracies on new.csv: of securefl's predictions, of pooled logistic regression, of a constant."""
    actual = pd.read_csv(folder / "new.csv")["repaid"]
    predicted = pd.read_csv(folder / "predicted.csv")["prediction"]
    return pd.Series(
        {
            "securefl": (predicted == actual).mean(),
            "scikit-learn, pooled": pooled(folder),
            "the most frequent label": actual.value_counts(normalize=True).iloc[0],
        }
    )


def main() -> None:
    """Type the commands and print their times and the accuracies."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        write(folder, 30_000, float((*sys.argv[1:], 1.0)[0]))
        for words in COMMANDS:
            began = perf_counter()
            command = [sys.executable, "-m", "securefl", *words.split()]
            subprocess.run(command, cwd=folder, check=True, capture_output=True)
            print(f"{perf_counter() - began:6.1f} s  securefl {words}")
        print(figures(folder).round(4).to_string())


def tables(folder: Path) -> None:
    """Make a folder with the tables and the study of docs/own-data.md."""
    folder.mkdir()
    write(folder, 30_000, 1.0)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--tables", name]:
            tables(Path(name))
        case _:
            main()
