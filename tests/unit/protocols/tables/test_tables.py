"""The tables that ship: their studies can be played, and their figures are those that the papers print."""

from __future__ import annotations

import os
import re
import tomllib
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import tomli_w
from support.every import every

from securefl.core.errors import ConfigError, DataError
from securefl.data import Dataset, Split
from securefl.protocols.tables import adds, fedcor, fedlog, fedprof_v1, fedprof_v2
from securefl.published.table import Figure, Measure, Part, Table, differences
from securefl.report.significance import least_pairs
from securefl.study import own_code, world
from securefl.study.composition import compositions
from securefl.sweep.cells import put

TABLES = {
    "adds_table_3": adds.TABLE_3,
    "adds_table_4": adds.TABLE_4,
    "adds_table_4_twin": adds.TABLE_4_TWIN,
    "fedcor_table_1": fedcor.TABLE_1,
    "fedcor_table_1_cifar10": fedcor.TABLE_1_CIFAR10,
    "fedcor_table_1_cifar10_twin": fedcor.TABLE_1_CIFAR10_TWIN,
    "fedcor_table_1_twin": fedcor.TABLE_1_TWIN,
    "fedlog_figure_2_flexible": fedlog.FLEXIBLE,
    "fedlog_table_1_cifar10": fedlog.TABLE_1_CIFAR10,
    "fedlog_table_1_cifar10_twin": fedlog.TABLE_1_CIFAR10_TWIN,
    "fedlog_table_1_mnist": fedlog.TABLE_1_MNIST,
    "fedlog_table_1_mnist_twin": fedlog.TABLE_1_MNIST_TWIN,
    "fedprof_v1_table_2": fedprof_v1.TABLE_2,
    "fedprof_v1_table_3": fedprof_v1.TABLE_3,
    "fedprof_v1_table_3_twin": fedprof_v1.TABLE_3_TWIN,
    "fedprof_v2_table_3": fedprof_v2.TABLE_3,
    "fedprof_v2_table_3_twin": fedprof_v2.TABLE_3_TWIN,
    "fedprof_v2_table_4": fedprof_v2.TABLE_4,
    "fedprof_v2_table_4_twin": fedprof_v2.TABLE_4_TWIN,
    "fedprof_v2_table_5": fedprof_v2.TABLE_5,
    "fedprof_v2_table_5_twin": fedprof_v2.TABLE_5_TWIN,
}


# Studies -----------------------------------------------------------------------------------------


def test_every_row_is_played_by_an_arm() -> None:
    for name, table in TABLES.items():
        for part in table.parts:
            arms = [own["name"] for own in tomllib.loads(part.text)["arm"]]
            assert [row.arm for row in part.rows] == arms, (name, part.name)
            assert part.ours in arms, (name, part.name)
        assert len({part.name for part in table.parts}) == len(table.parts), name


def test_what_takes_long_has_a_twin_that_says_so() -> None:
    for name, table in TABLES.items():
        twins = [own for own in TABLES.values() if own.twin_of and TABLES[own.twin_of] is table]
        assert twins or table.minutes <= 40, name
        for twin in twins:
            assert twin.minutes <= 40, name
            for own, full in zip(twin.parts, table.parts, strict=False):  # a twin may be of the first parts
                assert [row.figures for row in own.rows] == [row.figures for row in full.rows], name


def test_a_table_at_full_size_has_seeds_that_can_bear_its_rivals() -> None:
    """In the paper's scale nobody runs a table twice because it had a seed too few."""
    for name in {table.twin_of for table in TABLES.values() if table.twin_of}:
        for part in TABLES[name].parts:
            assert len(part.study.study.seeds) >= least_pairs(len(part.rows) - 1), name


@pytest.mark.parametrize("table", [fedprof_v1.TABLE_2, fedprof_v2.TABLE_3], ids=["v1", "v2"])
def test_every_arm_on_gas_turbine_can_be_composed(table: Table) -> None:
    for part in table.parts:
        try:
            here = world.build(part.study, 1)
        except DataError as error:
            pytest.skip(str(error))
        compositions(part.study, here)


def test_a_twin_marks_its_scale() -> None:
    said = differences(fedprof_v2.TABLE_4_TWIN)
    assert "data.clients = 100; published is 500." in said
    assert "model.kind = mlp; published is lenet5." in said
    assert "data.source = mnist; published is EMNIST digits." in said
    assert any("study.target = 0.7; published is 0.9." in line for line in said)
    assert not any("study.rounds" in line for line in differences(fedprof_v2.TABLE_3))


def test_the_table_of_fedcor_is_whole_once_its_systems_are_there() -> None:
    try:
        studies = [part.study for part in fedcor.TABLE_1.parts]
    except ConfigError as error:
        pytest.skip(str(error))
    assert [(study.data.clients, len(study.study.seeds)) for study in studies] == [(100, 8)] * 3
    assert not any("arm" in line for line in differences(fedcor.TABLE_1))


# Figures, read back from the papers' text --------------------------------------------------------


@cache
def paper(name: str) -> str:
    data = os.environ.get("SECUREFL_DATA", ".")
    path = Path(os.environ.get("SECUREFL_PAPERS", Path(data).parent / "papers")) / name
    if not path.is_file():
        pytest.skip(f"no text of the paper at {path}; set SECUREFL_PAPERS")
    return path.read_text(encoding="utf-8")


def printed(part: Part, measures: tuple[Measure, ...], label: str) -> list[Figure]:
    (row,) = (row for row in part.rows if row.label == label)
    return [row.figures[measure] for measure in measures]


@every(
    ("table", "number", "heads"),
    [
        (
            fedprof_v2.TABLE_3,
            3,
            {"full aggregation": "GasTurbine (full", "partial aggregation": "GasTurbine (part"},
        ),
        (
            fedprof_v2.TABLE_4,
            4,
            {"full aggregation": "EMNIST (full", "partial aggregation": "EMNIST (part"},
        ),
        (
            fedprof_v2.TABLE_5,
            5,
            {"full aggregation": "CIFAR (full", "partial aggregation": "CIFAR (part"},
        ),
    ],
)
def test_figures_of_fedprof_v2(table: Table, number: int, heads: dict[str, str]) -> None:
    """Rows such as `Ours 0.832±plus-or-minus\\pm0.005 38±plus-or-minus\\pm23`; some have +- there, or a -."""
    whole = paper("fedprof-v2-arxiv.txt")
    block = whole[whole.index(f"Table {number}: Summary") :].partition("\nTable ")[0]
    read = 0
    for part in table.parts:
        lines = block[block.index(heads[part.name]) :].splitlines()
        for row in part.rows:
            line = next(line for line in lines if line.startswith(f"{row.label} "))
            found = [
                Figure(mean=float(mean), deviation=float(deviation)) if mean else Figure(mean=None)
                for mean, deviation in re.findall(
                    r"([\d.]+)(?:±plus-or-minus\\pm|\+-)([\d.]+)|(?<= )-(?= |$)", line
                )
            ]
            assert printed(part, table.measures, row.label) == found, row.label
            read += len(found)
    assert read == 8 * 4


@every(
    ("table", "number", "fractions"),
    [(fedprof_v1.TABLE_2, 2, (0.2, 0.3)), (fedprof_v1.TABLE_3, 3, (0.05, 0.1))],
)
def test_figures_of_fedprof_v1(table: Table, number: int, fractions: tuple[float, float]) -> None:
    """Rows of tabs: four figures at each C; below "Ours" a row of deviations."""
    whole = paper("fedprof-v1-openreview.txt")
    block = whole[whole.index(f"Table {number}: The results") :].split("\n\n")[1]
    groups = dict(zip(("full", "partial"), block.split("Partial aggregation"), strict=True))
    read = 0
    for part in table.parts:
        group = part.name.split()[0]
        place = fractions.index(float(part.name.split("C ")[1]))
        rows = {
            cells[0].upper(): [
                float(re.sub("</?b>", "", cell)) for cell in cells[1 + 4 * place : 5 + 4 * place]
            ]
            for cells in (line.split("\t") for line in groups[group].splitlines())
            if len(cells) == 9 and re.search(r"\d", cells[1])
        }
        for row in part.rows:
            deviations = rows["(STD.)"] if row.label == "Ours" else [None] * 4
            expected = [
                Figure(mean=mean, deviation=deviation)
                for mean, deviation in zip(rows[row.label.upper()], deviations, strict=True)
            ]
            assert printed(part, table.measures, row.label) == expected, row.label
            read += 4
    assert read == 2 * 8 * 4


def test_figures_of_fedcor() -> None:
    """Rows such as `Pow-d 126.6±78.2plus-or-minus126.678.2...`; three columns are Fashion-MNIST's."""
    whole = paper("fedcor.txt")
    block = whole[whole.index("Method FMNIST CIFAR-10") : whole.index("Table 1: The number of communication")]
    lines = block.splitlines()
    targets = [float(found) / 100 for found in re.findall(r"\((\d+)%", lines[1])[:3]]
    assert [setting.target for setting in fedcor.SETTINGS.values()] == targets
    for label in ("Rand", "AFL", "Pow-d", "FedCor"):
        line = next(line for line in lines if line.startswith(label))
        cells = re.findall(r"(?:(?<=\s)|(?<=\)\s))(\d+\.\d)±(\d+\.\d)plus|(N/A)", line)
        found = [
            Figure(mean=None) if none else Figure(mean=float(mean), deviation=float(deviation))
            for mean, deviation, none in cells[:3]
        ]
        own = (printed(part, (Measure.ROUNDS,), label) for part in fedcor.TABLE_1.parts)
        assert [figure for (figure,) in own] == found, label


@every(("table", "place"), [(fedlog.TABLE_1_MNIST, 0), (fedlog.TABLE_1_CIFAR10, 1)])
def test_figures_of_fedlog(table: Table, place: int) -> None:
    """Rows such as `FedAvg 89.76±plus-or-minus\\pm±0.69 3.45±plus-or-minus\\pm±0.02Gb 26.29...`."""
    whole = paper("fedlog.txt")
    lines = whole[whole.index("Table 1: Testing accuracy") : whole.index("\nExperiments\n")].splitlines()
    (part,) = table.parts
    assert len(part.rows) == 11
    for row in part.rows:
        line = next(line for line in lines if line.startswith((f"{row.label} (ours) ", f"{row.label} ")))
        found = re.findall(r"([\d.]+)±plus-or-minus\\pm±([\d.]+)(Gb|Mb)?", line)
        accuracy, sent = found[2 * place : 2 * place + 2]
        assert (accuracy[2], len(found)) == ("", 6)
        for measure in (Measure.LAST, Measure.BEST):
            own = row.figures[measure]
            assert (own.mean, own.deviation) == pytest.approx(
                (float(accuracy[0]) / 100, float(accuracy[1]) / 100)
            )
        own, unit = row.figures[Measure.MEGABITS_UP], {"Gb": 1000, "Mb": 1}[sent[2]] / (1 + place)
        assert (own.mean, own.deviation) == pytest.approx((unit * float(sent[0]), unit * float(sent[1])))
        assert Measure.MEGABYTES not in row.figures


@every(
    ("table", "model", "rounds"),
    [
        (fedlog.TABLE_1_MNIST, (260, 5_020, 16_050, 510), 98.7),
        (fedlog.TABLE_1_CIFAR10, (456, 2_416, 48_120, 12_100, 1_010), 92.4),
    ],
)
def test_the_megabits_of_fedlog_are_of_one_direction(
    table: Table, model: tuple[int, ...], rounds: float
) -> None:
    """FedAvg sends whole models, in at most 100 rounds. As printed, CIFAR-10's would be 185 of them."""
    (part,) = table.parts
    (row,) = (row for row in part.rows if row.label == "FedAvg")
    sent, clients = row.figures[Measure.MEGABITS_UP].mean, part.setting["data.clients"]
    assert sent is not None
    assert round(sent / (clients * sum(model) * 32 / 1e6), 1) == rounds


def test_figures_of_fedlog_with_two_lengths_of_bodies() -> None:
    text = paper("fedlog.txt")
    whole = text[text.index("Flexible Architecture\n\n") : text.index("Differential Privacy\n\nWe conduct")]
    told = re.findall(r"([\d.]+)±plus-or-minus\\pm±([\d.]+)", whole)
    order = ("FedLog-C", "FedProto", "LG-FedAvg 1", "FedLog")
    assert fedlog.FLEXIBLE_PRINTED.keys() == {*order}
    for label, (mean, error) in zip(order, told, strict=True):
        own = fedlog.FLEXIBLE_PRINTED[label][Measure.LAST]
        assert (own.mean, own.deviation) == pytest.approx((float(mean) / 100, float(error) / 100))


def test_figures_of_adds_with_all_systems() -> None:
    """Accuracies as above; then `5.68M 34.68M`, `1.39M (24.39%) 34.61M (1 x)`, or rounds `41 78 155`."""
    whole = paper("adds.txt")
    images = whole[whole.index("TABLE III") : whole.index("FedCelebA\nMethod AccG")]
    texts = whole[whole.index("TABLE IV") : whole.index("Sentiment140\nMethod AccG")]
    for block, known in ((images, adds.IMAGES), (texts, adds.TEXTS)):
        for label, numbers in known.items():
            line = next(line for line in block.splitlines() if line.startswith(f"{label} "))
            found = re.findall(r"([\d.]+)%±\\%\\ \\pm ([\d.]+)%", line)
            assert [float(n) for pair in found for n in pair] == list(numbers[:4]), label
            rest = line[line.rindex("percent") :].partition("% ")[2]
            if known is adds.TEXTS:
                rounds = re.sub(r"\([^)]*\)", "", rest).split()
                assert [float(n) for n in rounds] == list(numbers[4:]), label
                continue
            share = re.search(r"\(([\d.]+)%\)", rest)
            macs = re.findall(r"([\d.]+)M", rest)[1]
            assert [float(share[1]) if share else 100.0, float(macs)] == list(numbers[4:]), label


def test_the_sizes_of_adds_are_shares_of_fedavgs() -> None:
    (dense, _) = adds.TABLE_3.parts
    found = {row.label: printed(dense, adds.SHARES, row.label) for row in dense.rows}
    assert found["FedAvg"] == [Figure(mean=1.0), Figure(mean=1.0)]
    assert found["ADDS (LRP)"] == [Figure(mean=0.1506), Figure(mean=0.4651)]


def black_images(*_: object, **__: object) -> Split:
    """Few images of CIFAR-10's form, whose files few machines have."""
    labels = np.arange(2000) % 10
    black = Dataset(name="black", x=np.zeros((2000, 3, 32, 32), np.float32), y=labels, classes=10)
    return Split(train=black, test=black)


@every("table", [fedlog.TABLE_1_CIFAR10_TWIN, fedlog.FLEXIBLE])
def test_every_arm_of_fedlog_on_cifar10_can_be_composed(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_code, "load", black_images)
    (part,) = table.parts
    few = tomllib.loads(part.text)
    put(few, "data.records", 2000)
    study = replace(part, text=tomli_w.dumps(few)).study
    here = world.build(study, 1)
    compositions(study, here)


@pytest.mark.parametrize("table", [adds.TABLE_3, adds.TABLE_4, adds.TABLE_4_TWIN], ids=["3", "4", "4, twin"])
def test_every_arm_of_adds_can_be_composed(table: Table) -> None:
    for part in table.parts:
        try:
            here = world.build(part.study, 1)
        except DataError as error:
            pytest.skip(str(error))
        compositions(part.study, here)
        assert here.held is not None
        assert all(len(x) for x, _ in here.held)


@every("table", TABLES)
def test_rows_say_what_they_send_where_the_study_names_several_values(table: str) -> None:
    """A study of one system, beyond an edge of its grid, must not name a value that only others send."""
    for part in TABLES[table].parts:
        assert len(part.study.privacy.non_private) < 2 or all(row.sends for row in part.rows), part.name
