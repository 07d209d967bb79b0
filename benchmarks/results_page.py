"""The tables of docs/results.md that follow from the files in benchmarks/results.

    python benchmarks/results_page.py [--write]    # are the tables below the headings so, or write them

The heads and rows of a published table, and the sentence behind it, follow from the values of every seed.
So do the comments above these values, and claims.csv.
Other headings and sentences are a person's. tests/e2e/test_figures.py compares the page's other figures.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from importlib.metadata import entry_points
from itertools import starmap
from math import inf
from pathlib import Path

import pandas as pd
from flatness import LASTING, STEADY, flatness, quarters
from kept import DOCS, RESULTS, read
from pandas.api.types import is_numeric_dtype

from securefl.core.text_safety import comment
from securefl.published import Measure, Table, comparison
from securefl.published.runs import tuned
from securefl.published.table import tasks
from securefl.report.significance import student
from securefl.report.tables import csv_of

sys.path.append(str(DOCS.parent / "tools"))
import made

PAGE = DOCS / "results.md"
Cells = list[str]


@cache
def figures_of(file: str) -> tuple[Table, pd.DataFrame]:
    """A published table, and its figures as `comparison.compare` has them, from benchmarks/results."""
    (point,) = entry_points(group="securefl.tables", name=file.removesuffix("_tuned"))
    table = point.load()
    found = comparison.read(RESULTS / f"{file}.csv", table)
    table = replace(table, measures=tuple(map(Measure, found["measure"].unique())))
    return table, comparison.compare(table, found)


def beside_published(file: str, measures: Sequence[str]) -> list[str]:
    """A published table: its heads, a row for each system, and what the seeds say.

    Published and measured figures of two tasks have heads that say so.
    """
    table, figures = figures_of(file)
    printed = {(part.name, row.label): row.figures for part in table.parts for row in part.rows}
    published, here = ("published", "measured") if (task := tasks(table)) is None else ("published", "a twin")
    words = [published, here, "lead"]
    heads = [f"{measure}, {word}" for measure in measures for word in words]
    if task is not None:
        heads[:2] = (f"{head} ({own})" for head, own in zip(heads, task, strict=False))
    rows = [_row("", *heads), f"|{'---|' * (1 + len(heads))}"]
    for (part, system), own in figures.groupby(["part", "system"], sort=False):
        by_measure = {row.measure: row for row in own.itertuples()}
        cells: list[str] = []
        for measure in map(Measure, measures):
            one = by_measure[measure]
            lead = "" if pd.isna(one.lead) else comparison.lead_words(measure, one)
            paper = comparison.published_words(measure, printed[part, system])
            cells += [paper, comparison.measured_words(measure, one), lead]
        name = system if figures["part"].nunique() == 1 else f"{part.replace(' aggregation', '')}: {system}"
        rows.append(_row(name, *cells))
    return [*rows, "", f"{SAYS}{sentence(table, figures, measures)}"]


def sentence(table: Table, figures: pd.DataFrame, measures: Sequence[str]) -> str:
    """Whom the own systems lead and follow in each measure. The largest group of rivals is counted alone."""
    ours = {(part.name, row.label) for part in table.parts for row in part.rows if row.arm == part.ours}
    rivals = figures[[key not in ours for key in zip(figures["part"], figures["system"], strict=True)]]
    found = []
    for measure in measures:
        words: dict[str, list[str]] = {}
        for one in rivals[rivals["measure"] == measure].itertuples():
            part = "" if len(table.parts) == 1 else f"{one.part.replace(' aggregation', '')}: "
            words.setdefault(comparison.verdict(one), []).append(f"{part}{one.system}")
        most = max(words, key=lambda way: len(words[way]))
        whole = sum(map(len, words.values()))
        said = [
            f"{way} {f'{len(own)} of {whole} rivals' if way == most else ' and '.join(own)}"
            for way, own in words.items()
        ]
        found.append(f"{measure}: {'; '.join(said)}")
    seeds = figures["seeds"].iloc[0]
    return f"{'. '.join(found)}. Seeds: {seeds}."


def _row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


SAYS = "The own system, by "
_BEST = ("best accuracy", "rounds")
_SENT = ("last accuracy", "Mb sent")
_OWN = ("global accuracy", "local accuracy")
_SHARES = ("parameters (share)", "MACs (share)")
PUBLISHED: Mapping[str, tuple[str, Sequence[str]]] = {
    "FedProf's Table 3": ("fedprof_v2_table_3_twin_tuned", _BEST),
    "FedProf's Table 4": ("fedprof_v2_table_4_twin_tuned", _BEST),
    "FedProf's Table 5": ("fedprof_v2_table_5_twin_tuned", _BEST),
    "FedProf v1's Table 2": ("fedprof_v1_table_2_tuned", _BEST),
    "FedProf v1's Table 3": ("fedprof_v1_table_3_twin_tuned", _BEST),
    "FedCor's Table 1": ("fedcor_table_1_twin_tuned", ("rounds", "best accuracy")),
    "FedLog's Table 1": ("fedlog_table_1_mnist_twin_tuned", _SENT),
    "FedLog's Table 1 on CIFAR-10": ("fedlog_table_1_cifar10_twin", _SENT),
    "FedLog's Figure 2, two lengths of bodies": (
        "fedlog_figure_2_flexible",
        ("last accuracy", "best accuracy"),
    ),
    "ADDS' Table III": ("adds_table_3_tuned", (*_OWN, *_SHARES)),
    "ADDS' Table IV": ("adds_table_4_twin", (*_OWN, "rounds")),
}
"""By the section's heading: the file, and the measures that are shown."""


def claims() -> Iterator[str]:
    """What each paper claims of its own system in each part of a table, and what was measured of it.

    The claim is a lead in the first measure of the section, or that there is none over all. Published and
    measured, it is over the rival that the own system leads least.
    """
    for heading, (file, (first, *_)) in PUBLISHED.items():
        (table, figures), measure = figures_of(file), Measure(first)
        number, paper = partial(comparison.number_words, measure), table.source.split()[0].rstrip(",")
        anchor = re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
        task = "–" if (found := tasks(table)) is None else f"{found[1]}; published: {found[0]}"
        for part in table.parts:
            (ours,) = (row.label for row in part.rows if row.arm == part.ours)
            own = figures[(figures["part"] == part.name) & (figures["measure"] == measure)]
            means = own.set_index("system")["published"].dropna()
            gaps = (means - means[ours]) * (-1 if measure.higher_is_better else 1)
            printed = gaps.drop(ours)
            name = paper if ours == "Ours" else ours
            rival = own.dropna(subset="lead").nsmallest(1, "lead").iloc[0]
            lead = "–" if pd.isna(rival.needed) else number(rival.lead)
            yield _row(
                f"[{table.source}](#{anchor}), {part.name}",
                f"{name} {'leads' if printed.min() > 0 else 'does not lead'} in {measure}",
                f"{number(printed.min())} over {printed.idxmin()}",
                f"{lead}, {comparison.verdict(rival)} {rival.system}",
                comparison.interval_words(measure, rival) or "–",
                rival.seeds,
                task,
            )


def systems() -> str:
    """claims.csv: the lead of each part's own system over each rival, published and measured."""
    found = []
    for file, (first, *_) in PUBLISHED.values():
        (table, figures), measure = figures_of(file), Measure(first)
        here, there = tasks(table) or ("", "")
        for part in table.parts:
            own = figures[(figures["part"] == part.name) & (figures["measure"] == measure)]
            printed = own.set_index("system")["published"]
            (ours,) = (row.label for row in part.rows if row.arm == part.ours)
            name = table.source.split()[0].rstrip(",") if ours == "Ours" else ours
            for rival in own[own["system"] != ours].itertuples():
                ahead = (printed[ours] - rival.published) * (1 if measure.higher_is_better else -1)
                leads = "does not lead" if ahead <= 0 else "leads"  # a rival without a figure never arrived
                found.append(
                    {
                        "table": f"{table.source}, {part.name}",
                        "claim": f"{name} {leads} {rival.system} in {measure}",
                        "published lead": comparison.number_words(measure, ahead).replace("nan", "N/A"),
                        "measured lead": comparison.lead_words(measure, rival),
                        "verdict": f"{comparison.verdict(rival)} {rival.system}",
                        "seeds": rival.seeds,
                        "published task": here,
                        "measured task": there,
                        "further differences": f"{file}.csv",
                    }
                )
    return csv_of(pd.DataFrame(found), ["python benchmarks/results_page.py --write"])


def headed(file: str) -> str:
    """The values of a published table below the comments that they and the table give today."""
    above, below = [], []
    for line in (RESULTS / f"{file}.csv").read_text(encoding="utf-8").splitlines(keepends=True):
        (above if line.startswith("# ") else below).append(line)
    table, figures = figures_of(file)
    if file.endswith("_tuned"):
        chosen = (line.removeprefix("# difference: ").strip() for line in above if ": chosen " in line)
        table = tuned(table, chosen)
    command = above[0].removeprefix("# ").strip()
    head = comparison.head(command, table, figures)
    return "".join([*(f"# {comment(line)}\n" for line in head), *below])


def full_rounds() -> Iterator[str]:
    """A row for each system of fedlog_full_rounds: its best round, some rounds, and what is published."""
    table, _ = figures_of("fedlog_table_1_cifar10_twin")
    printed = {row.arm: row.figures for part in table.parts for row in part.rows}
    for cells in peaks("fedlog_full_rounds.csv", "arm", 20, 50, 100):
        yield _row(*cells, comparison.published_words(Measure.LAST, printed[cells[0]]))


def peaks(file: str, key: str, *rounds: int) -> Iterator[Cells]:
    """The name of each system or setting of one seed, its best accuracy, its round, and others."""
    for name, own in read(file).groupby(key, sort=False):
        by_round = own.set_index("round")["accuracy"]
        shown = [f"{by_round[number]:.3f}" for number in rounds]
        yield [CELLS.get(name, str(name)), f"{by_round.max():.3f}", str(by_round.idxmax()), *shown]


def lenet5() -> Iterator[str]:
    for row in read("fedprof_lenet5.csv").to_dict("records"):
        reached = row["rounds_to_target"]
        yield _row(
            "standardised" if "0.1307" in row["data.scaling"] else "0 to 1",
            f"{row['local.learning_rate']:g}",
            "their last model" if row["arm.stale"] else "the old global model",
            f"{row['final_accuracy']:.3f}",
            f"{row['best_accuracy']:.3f}",
            "–" if pd.isna(reached) else f"{reached:.0f}",
        )


def theorem_1() -> Iterator[str]:
    """Each arm, and how far FedProf under the theorem is ahead of it."""
    arms = dict([*read("fedprof_theorem_1.csv").set_index("seed").groupby("arm", sort=False)])
    ours = next(iter(arms.values()))
    for arm, own in arms.items():
        cells = []
        for column, sign in (("best_accuracy", 1), ("mean_of_last_five", 1), ("rounds_to_target", -1)):
            mean, half = student(sign * (ours[column] - own[column]))
            digits = 1 if column.startswith("rounds") else 3
            ends = f"{mean - half:.{digits}f} to {mean + half:.{digits}f}"
            cells += [spread(own[column], digits), "" if own is ours else ends]
        yield _row(arm, *cells)


def rates() -> Iterator[str]:
    for arm, own in read("fedprof_rates.csv").groupby("arm", sort=False):
        by_rate = [
            (
                spread(seeds["best_accuracy"]),
                ", ".join("–" if pd.isna(count) else f"{count:.0f}" for count in seeds["rounds_to_target"]),
            )
            for _, seeds in own.groupby("local.learning_rate")
        ]
        yield _row(arm, *(cell for pair in by_rate for cell in pair))


def ablations() -> Iterator[str]:
    groups = read("fedcor_ablations.csv").groupby(
        ["arm.interval", "arm.annealing", "arm.warm_up"], sort=False
    )
    for (interval, beta, warm_up), own in groups:
        yield _row(
            interval,
            f"{beta:g}",
            warm_up,
            ", ".join(f"{rounds:.0f}" for rounds in own["rounds_to_target"]),
            *(f"{own[name].mean():.3f}" for name in ("final_accuracy", "best_accuracy")),
            f"{own['bytes_down'].mean() / 1e9:.2f}",
        )


def annealing() -> Iterator[str]:
    for cell, own in read("fedcor_annealing.csv").groupby(["setting", "interval", "annealing"], sort=False):
        rounds = ", ".join("–" if pd.isna(one) else f"{one:.0f}" for one in own["rounds_to_target"])
        means = (f"{own[name].mean():.3f}" for name in ("final_accuracy", "best_accuracy"))
        yield _row(*cell, rounds, *means)


def whole(file: str, *without: str) -> Iterator[str]:
    """Every row of a file as it stands."""
    table = pd.read_csv(RESULTS / file, dtype=str, comment="#").drop(columns=[*without])
    return (_row(*row) for row in table.fillna("").to_numpy())


EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0, inf)
_KEYS = ("arm.body", "arm.clip", "privacy.noise", "privacy.calibration", "privacy.unit")
_UNIT, _BOUNDED = "kind unit-l2", "kind bounded, bound 1"
BODIES: Mapping[str, Sequence[str]] = {
    "public, unit norm, central, exact": ("public", _UNIT, "central", "exact", "record"),
    "the same, masked sum with shares of noise": ("public", _UNIT, "distributed", "exact", "record"),
    "the same, local noise": ("public", _UNIT, "local", "exact", "record"),
    "public, |x| ≤ 1, central, exact": ("public", _BOUNDED, "central", "exact", "record"),
    "public, |x| ≤ 1, central, the paper's σ": ("public", _BOUNDED, "central", "paper", "record"),
    "DP-SGD, unit norm, central, exact": ("dp-sgd", _UNIT, "central", "exact", "record"),
    "private, unit norm, central, exact": ("private", _UNIT, "central", "exact", "record"),
    "private, per client (bound 60)": ("private", _UNIT, "central", "exact", "client"),
}
"""What the sweep fedlog_tradeoff calls its settings: body, clip, noise, calibration and unit."""


def of_body(table: pd.DataFrame, name: str) -> pd.DataFrame:
    """The rows of a setting of BODIES."""
    for key, value in zip(_KEYS, BODIES[name], strict=True):
        table = table[table[key] == value]
    return table


def by_epsilon(file: str) -> Iterator[str]:
    """A row for each setting of BODIES: the mean by the epsilon asked for, and which epsilon is true."""
    table = read(file)
    for name in BODIES:
        if len(own := of_body(table, name)):
            means = own.groupby("privacy.epsilon")[["final_accuracy", "epsilon_true"]].mean()
            cells = [f"{means['final_accuracy'][at]:.2f}" if at in means.index else "–" for at in EPSILONS]
            true = means["epsilon_true"][[1.0, 8.0]]
            words = "as asked" if true[8.0] > 7.99 else f"{true[1.0]:.2f} at 1, {true[8.0]:.1f} at 8"
            words = "**∞ per record**, whatever was asked" if true[8.0] == inf else words
            yield _row(name.replace("|", r"\|"), *cells, words)


NOMINAL: Mapping[float, str] = {inf: "no noise", 43.5: "5", 3.93: "1", 1.54: "0.5"}
"""The epsilon that FedLog's Figure 2 names, by the true one of the 21 statistics of its twin."""


def of_figure_2() -> Iterator[str]:
    """A row for each epsilon that the figure names: accuracy by who adds the noise, and what the noise takes.

    What it takes is the mean of the same seeds' differences from the runs without noise, with its interval.
    """
    table = read("fedlog_figure_2_privacy_twin.csv").set_index("seed")
    by_noise = dict([*table.groupby(["privacy.noise", "privacy.epsilon"])["final_accuracy"]])
    quiet = by_noise["central", inf]
    for true, name in NOMINAL.items():
        cells = []
        for noise in ("central", "local"):
            if (own := by_noise.get((noise, true))) is None:
                cells += ["", ""]
                continue
            cells += [spread(own), "" if own is quiet else lead(quiet - own)]
        yield _row(name, f"{true:g}".replace("inf", "∞"), *cells)


def lead(values: pd.Series) -> str:
    """The mean of the seeds' leads, with its 95 % interval (Student's t)."""
    mean, half = student(values)
    # An end keeps its sign: it says on which side of 0 the interval ends.
    return f"{mean:z.3f} [{mean - half:.3f} to {mean + half:.3f}]".replace("-", "−")


def spread(values: pd.Series, digits: int = 3) -> str:
    """The mean of the seeds' values, and their standard deviation."""
    return f"{values.mean():.{digits}f} ± {values.std():.{digits}f}"


CELLS: Mapping[object, str] = {
    "noise-deviation-0-1": "deviation 0.1",
    "noise-deviation-0-316": "variance 0.1",
    "at-own": "own",
    "at-averaged": "averaged",
    "vote-rate-0-01": "Table A.3 alone",
    "dropout-0-5": "dropout of 0.5",
    "augment-crops-flips": "crops and flips",
    "measurements-0-1-sketch-rate-0-01": "half the sketch, at rate 0.01",
    "dropout-0-5-augment-crops-flips-measurements-0-1-sketch-rate-0-01": "all three",
    "name-the-whole-model-at-once": "the whole model at once",
    "name-a-tensor-at-a-time-per-tensor-true": "a tensor at a time",
    "name-ties-ties-true": "ties",
    "name-a-tensor-at-a-time-ties-per-tensor-true-ties-true": "a tensor at a time, ties",
    "learning-rate-0-0005-batch-size-50": "rate 0.0005 and batches of 50, as the other systems",
    ("1", "not set"): "independent (`bands = 1`)",
    ("1", "0.5"): "independent, the bound follows the median of norms (`bound_quantile = 0.5`)",
    ("20", "not set"): "BandMF (`bands = 20`)",
    ("blt", "not set"): 'BLT (`bands = "blt"`)',
}
"""What the page calls the cells of sweeps, and combinations of their keys."""


def of_study(file: str, target: float, *rounds: int) -> Iterator[str]:
    """A row for each arm: accuracy at the end and after some rounds, the round of a target, and megabytes.

    The column behind the end has how far an arm is ahead of the first one, seed by seed, with its 95 %
    interval (Student's t). Of a sweep, a name has its cell, and the first arm is that of the cell. If there
    is one arm alone, its cells stand as arms.
    """
    table = read(file)
    if "cell" in table and table["arm"].nunique() == 1:
        table = table.assign(arm=table.pop("cell").map(CELLS.__getitem__))
    cells = {"": table} if "cell" not in table else dict([*table.groupby("cell", sort=False)])
    for cell, found in cells.items():
        arms = dict([*found.groupby("arm", sort=False)])
        by_arm = {
            arm: own.pivot(index="round", columns="seed", values="accuracy") for arm, own in arms.items()
        }
        last = {arm: own.iloc[-1] for arm, own in by_arm.items()}
        first = next(iter(last.values()))
        for place, (arm, own) in enumerate(by_arm.items()):
            ahead = ""
            if place and len(first) > 1:
                ahead = lead(last[arm] - first)
            arrived = (own >= target).any()
            mean_round = (own >= target).idxmax()[arrived].mean()
            sent = arms[arm].groupby("seed")[["bytes_up", "bytes_down"]].sum().mean() / 1e6
            yield _row(
                f"{CELLS[cell]}: {arm}" if cell else arm,
                spread(last[arm]) if len(first) > 1 else f"{last[arm].item():.3f}",
                ahead,
                *(f"{own.loc[number].mean():.3f}" for number in rounds),
                "never" if not arrived.any() else f"{mean_round:.1f}",
                f"{arrived.sum()} of {len(arrived)}",
                *(f"{megabytes:,.0f}" if megabytes >= 100 else f"{megabytes:.3g}" for megabytes in sent),
            )


def by_votes() -> Iterator[str]:
    """A row for each cell of the sweep cs_fl_skew."""
    cells = read("cs_fl_skew.csv").groupby(["data.partition.per_client", "arm.vote_rate"], sort=False)
    for cell, own in cells:
        yield _row(*cell, *(spread(own[name]) for name in ("final_accuracy", "best_accuracy")))


def across(file: str, rows: Sequence[str], column: str, value: str = "final_accuracy") -> Iterator[str]:
    """A row for each combination of the columns `rows`, in it a cell for each value of `column`."""
    table = read(file)
    for key, own in table.groupby([*rows], sort=is_numeric_dtype(table[rows[0]])):
        cells = own.groupby(column, sort=False)[value].agg(spread)
        names = (
            [CELLS[key]] if key in CELLS else [one if isinstance(one, str) else f"{one:,g}" for one in key]
        )
        yield _row(*names, *cells.reindex(table[column].unique(), fill_value="–"))


def changes() -> Iterator[str]:
    """A row for each setting of the sweep adds_changes, three columns for each number of classes.

    A lead is over the runs that send all units, with as many steps, under the same seeds.
    """
    table = read("adds_changes.csv").set_index(["data.partition.per_client", "seed"])
    settings = dict([*table.groupby("study.name", sort=False)])
    for name, own in settings.items():
        rival = settings["1 step a round, all units" if "1 step" in name else "all units (FedAvg)"]
        cells = []
        for classes in own.index.unique(0):
            ours, theirs = own.loc[classes], rival.loc[classes]
            ahead = "" if own is rival else lead(ours["final_accuracy"] - theirs["final_accuracy"])
            sent = (ours["bytes_up"] / settings["all units (FedAvg)"].loc[classes, "bytes_up"]).mean()
            cells += [spread(ours["final_accuracy"]), ahead, f"{sent:.2f}"]
        yield _row(name, *cells)


def by_skew(file: str) -> Iterator[str]:
    """A row for each number of classes that a client has, a column for each lambda."""
    for classes, own in read(file).groupby("classes", sort=False):
        cells = [
            f"{spread(seeds['accuracy'])}, {seeds['local_accuracy'].mean():.3f}"
            for _, seeds in own.groupby("weight")
        ]
        most, *_, least = own.groupby("weight")["parameters"].mean()
        yield _row(classes, f"{own['skew'].mean():.2f}", *cells, f"{most:.2f} to {least:.2f}")


def of_pfl() -> Iterator[str]:
    """A row for each kind of noise of the sweep pfl_cifar10, with two columns for each partition."""
    for kind, own in read("pfl_cifar10.csv").groupby("study.name", sort=False):
        cells = []
        for _, found in own.groupby("data.partition", sort=False)["final_accuracy"]:
            mean, half = student(found)
            cells += [spread(found), f"{mean - half:.3f} to {mean + half:.3f}"]
        yield _row(kind, *cells)


def endurance(carrier: str) -> Iterator[str]:
    marks = read(f"endurance_{carrier}.csv")
    for figure, *numbers in flatness(marks, carrier).dropna().to_numpy():
        yield _row(figure, *(f"{number:.0f}" if number >= 100 else f"{number:.3g}" for number in numbers))
    steady, (number, last) = STEADY[carrier], [*marks.groupby("session")][-1]
    whole = (f"{quarter[f'{steady} kB'].iloc[-1]:.0f}" for quarter in quarters(last))
    yield _row(f"kB of {steady}'s files", number, *whole, "")


def charged() -> Iterator[str]:
    """A row for each client of a carrier: rounds answered, charges in its ledger, the server's orders."""
    for carrier in LASTING:
        yield from (_row(carrier, *row) for row in read(f"endurance_{carrier}_charges.csv").to_numpy())


OTHERS: Mapping[str, Callable[[], Iterator[str]]] = {
    "What the papers claim": claims,
    "GasTurbine": partial(of_study, "gas_turbine_noise.csv", 0.8),
    "LeNet-5 under full aggregation": lenet5,
    "MNIST with 500 clients": partial(of_study, "mnist_fedprof.csv", 0.9),
    "Mean-only matching": partial(of_study, "fedprof_mean_only.csv", 0.85),
    "FedProf's Table 4, by learning rate": rates,
    "FedProf under Theorem 1": theorem_1,
    "FedCor's ablations": ablations,
    "CS-FL and FedDBE for 100 rounds": full_rounds,
    "CS-FL with the authors' settings": lambda: starmap(_row, peaks("cs_fl_changes.csv", "cell", 10, 20, 30)),
    "FedPer and FedRep with the authors' settings": partial(of_study, "fedlog_own_bodies.csv", 0.97, 1, 2, 3),
    "FedLog without noise": partial(of_study, "fedlog_mnist.csv", 0.97, 1, 2, 3, 6),
    "FedLog with bodies of two lengths": partial(of_study, "fedlog_two_bodies.csv", 0.95),
    "FedProto beside FedLog": partial(of_study, "fedproto_digits.csv", 0.95),
    "Personal models side by side": partial(of_study, "personal_digits.csv", 0.9),
    "Compressed updates": partial(of_study, "compressed_digits.csv", 0.85),
    "CS-FL by skew of labels": by_votes,
    "Subnets (ADDS)": partial(of_study, "adds_writers_dense.csv", 0.85),
    "Subnets by skew of labels (ADDS)": partial(of_study, "adds_skew.csv", 0.8),
    "STC with its authors' settings": partial(of_study, "stc_changes.csv", 0.9),
    "ADDS with convolutions, one change at a time": changes,
    "Lambda against the skew of labels (ADDS)": lambda: by_skew("adds_lambda.csv"),
    "One client alone (ADDS)": lambda: by_skew("adds_alone.csv"),
    "Poisoned clients, and trust by cosine": partial(across, "fltrust_poisoned.csv", ["study.name"], "arm"),
    "What epsilon costs FedLog on digits": lambda: by_epsilon("fedlog_tradeoff.csv"),
    "What epsilon costs FedLog on MNIST": lambda: by_epsilon("fedlog_tradeoff_mnist.csv"),
    "What noise costs in FedLog's Figure 2": of_figure_2,
    "How normal fused representations are": lambda: whole("residual.csv"),
    "FedCor by annealing": annealing,
    "How normal loss changes are": lambda: whole("fedcor_normality.csv"),
    "How normal representations are": lambda: whole("representations.csv", "elements"),
    "Epsilon per client": partial(across, "client_level.csv", ["local.update_bound"], "privacy.epsilon"),
    "Noise correlated over rounds": partial(
        across, "client_level_matrix.csv", ["privacy.bands", "local.bound_quantile"], "privacy.epsilon"
    ),
    "A bound that adapts": partial(across, "adaptive_clipping.csv", ["local.update_bound"], "study.name"),
    "A twin of pfl-research's CIFAR-10": of_pfl,
    "Targets by protocol": lambda: whole("targets.csv"),
    "Encrypted matching": lambda: whole("matching.csv"),
    "Matching between files": lambda: whole("matching_files.csv"),
    "Frozen parts at an epsilon per client": partial(
        across, "frozen_parts.csv", ["model", "values"], "epsilon", "accuracy"
    ),
    "Kinds of models and files": lambda: whole("brought_kinds.csv"),
    "Endurance": partial(endurance, "sockets"),
    "Endurance over Flower": partial(endurance, "flower"),
    "Charges through kills": charged,
    "What a protocol's round takes": lambda: whole("protocol_times.csv"),
    "Fuzzing": lambda: whole("fuzz.csv"),
}


def rows() -> dict[str, list[str]]:
    """The rows of every table that is written from a file, by the heading of its section."""
    found = {heading: beside_published(*own) for heading, own in PUBLISHED.items()}
    return found | {heading: list(make()) for heading, make in OTHERS.items()}


def written(text: str, heading: str, lines: Sequence[str]) -> str:
    """The page with these rows in the first table of a section.

    Raises ValueError if the section has no table.
    """
    before, section = text.split(f"\n## {heading}\n")
    found = re.search(rf"(?m)^(\|.*\n\|[-| ]+\|\n)((?:\|.*\n)*(?:\n{SAYS}.*\n)?)", section)
    if found is None or "\n## " in section[: found.start()]:
        raise ValueError(f"Expected a table under {heading!r} in {PAGE}, got none. Write its heading there.")
    headed = any(re.fullmatch(r"[|-]+", line) for line in lines)
    begin = found.start() if headed else found.end(1)
    table = "".join(f"{row}\n" for row in lines)
    return f"{before}\n## {heading}\n{section[:begin]}{table}{section[found.end() :]}"


def page() -> str:
    """The page with all its tables as their files have them."""
    text = PAGE.read_text(encoding="utf-8")
    for heading, found in rows().items():
        text = written(text, heading, found)
    return text


def files() -> dict[Path, str]:
    """All that is written, by its place."""
    found = {RESULTS / f"{file}.csv": headed(file) for file, _ in PUBLISHED.values()}
    return {PAGE: page(), RESULTS / "claims.csv": systems(), **found}


if __name__ == "__main__":
    made.main(files())
