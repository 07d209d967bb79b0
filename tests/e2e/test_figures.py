"""The figures of docs/results.md and of the README that files in benchmarks/results have too."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import crafted_model
import pandas as pd
import peers
import pytest
import results_page
from e2e.pages import blocks
from support.every import every

from securefl.published import comparison
from securefl.report.significance import holm, signed_rank, student
from securefl.study.config import parse
from securefl.study.packaged import packaged
from securefl.sweep.cells import has_sweep, parse_sweep

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
TEXT = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")


def section(heading: str) -> str:
    return TEXT.split(f"\n## {heading}\n")[1].split("\n## ")[0]


def cells(heading: str) -> list[list[str]]:
    """The rows of a section's table, without heading and rule."""
    rows = [line for line in section(heading).splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in rows[2:]]


def test_the_tables_that_are_written_from_files() -> None:
    made = results_page.files()
    stale = [path for path, text in made.items() if path.read_text(encoding="utf-8") != text]
    assert not stale, "run `python benchmarks/results_page.py --write`"
    assert results_page.PAGE in made


def test_a_claim_is_of_a_printed_lead_and_compares_no_system_with_itself() -> None:
    for _, claim, published, measured, *_ in cells("What the papers claim"):
        name, leads, _ = re.split("( leads | does not lead )", claim)
        assert (leads == " leads ") == (float(published.split()[0].replace("−", "-")) > 0)
        assert not published.endswith(f" over {name}")
        assert not re.search(f" (beside|of|behind) {re.escape(name)}$", measured)


def test_a_figure_a_row_and_a_table_that_differ_are_found() -> None:
    for heading, rows in results_page.rows().items():
        assert rows
        for other in ([*rows[:-1], re.sub(r"\d", "x", rows[-1])], rows[1:], [*rows, rows[0]], []):
            assert results_page.written(TEXT, heading, other) != TEXT, heading
    with pytest.raises(ValueError, match="FedAvg under four conditions"):
        results_page.written(TEXT, "FedAvg under four conditions of data", [])


def test_a_comment_of_a_file_that_the_table_does_not_give_is_found(tmp_path: Path) -> None:
    """Differences that a table had gained stood in no file."""
    file = "fedprof_v2_table_4_twin_tuned"
    lines = (RESULTS / f"{file}.csv").read_text(encoding="utf-8").splitlines(keepends=True)
    for word in ("# difference: data.records", "# claim: full"):
        (tmp_path / f"{file}.csv").write_text("".join(line for line in lines if not line.startswith(word)))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(results_page, "RESULTS", tmp_path)
            assert results_page.headed(file) == "".join(lines)


def test_traces_are_of_the_runs_of_their_table() -> None:
    """A file of traces ends at the last or global accuracies of the table, under every seed."""
    files = [path.name.removesuffix("_traces.csv") for path in RESULTS.glob("*_traces.csv")]
    assert files
    for file in files:
        table, _ = results_page.figures_of(file)
        kept = comparison.read(RESULTS / f"{file}_traces.csv", table).groupby(["part", "system"])
        found = comparison.read(RESULTS / f"{file}.csv", table)
        ends_at = "global accuracy" if "global accuracy" in {*found["measure"]} else "last accuracy"
        last = found[found["measure"] == ends_at].groupby(["part", "system"])
        assert {*kept.groups} == {*last.groups} != set()
        for system, own in kept:
            ends = own.loc[own["round"].idxmax()].drop(["part", "system", "round"]).astype(float)
            values = last.get_group(system).set_index("seed")["value"]
            assert [*map(int, ends.index)] == [*values.index]
            assert ends.to_numpy() == pytest.approx(values.to_numpy(), abs=6e-5), system


def test_the_demo() -> None:
    kept = pd.read_csv(RESULTS / "demo.csv", comment="#").to_dict("records")
    (*said, head), (*plain, noised) = cells("The demo"), kept
    assert said == [
        [
            str(row["arm"]),
            f"{row['final_accuracy']:.3f}",
            f"{row['rounds_to_target']:.0f}",
            f"{row['megabytes_up']:.1f}",
        ]
        for row in plain
    ]
    low, high = map(float, head[1].split(" to "))
    assert low <= round(noised["final_accuracy"], 3) <= high
    assert head[2:] == [f"{noised['rounds_to_target']:.0f}", f"{noised['megabytes_up']:.1f}"]


def test_what_a_crafted_model_reads() -> None:
    kept = json.loads((RESULTS / "crafted_model.json").read_text(encoding="utf-8"))
    page = (ROOT / "docs" / "explanation" / "crafted-models.md").read_text(encoding="utf-8")
    said = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ")][1:]
    assert said == [
        [row["setting"], *(str(row[kind]) for kind in ("bins", "traps")), f"{row['likeness']:.2f}"]
        for row in kept["rows"]
    ]
    summary = f"{kept['rows'][0]['bins']} of {kept['records']:,}"
    assert all(
        summary in (ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/threat-model.md")
    )
    # The study of the page is the one that was measured, and so is its noise.
    shown = {block.title: block.body for block in blocks(page)}
    assert shown["study.toml"].strip() in crafted_model.STUDY
    private = tomllib.loads(crafted_model.noised(8.0))
    assert tomllib.loads(shown["study.toml"] + shown["noise.toml"]) == private


def test_what_encryption_adds() -> None:
    rows = cells("What encryption adds to the demo")
    whole = json.loads((RESULTS / "encryption_overhead.json").read_text(encoding="utf-8"))
    for column, word in enumerate(("ckks", "pads"), start=1):
        kept = whole[word]
        assert [row[column] for row in rows] == [
            f"{kept['extra_ms_per_client_and_round']:.1f} ms",
            f"{kept['extra_bytes_up_per_client_and_round']:,}",
            f"{kept['rounds_with_the_same_cohort']} of {whole['rounds']}",
            f"{kept['largest_score_difference']:.1e}, {kept['error_bound']:.1e}",
        ]


def test_peers() -> None:
    assert peers.table(pd.read_csv(RESULTS / "peers.csv", comment="#")) in section("Simulation beside others")


@every(("place", "kind"), list(enumerate(("local", "none", "masked"))))
def test_growth(place: int, kind: str) -> None:
    kept = json.loads((RESULTS / f"growth_{kind}.json").read_text(encoding="utf-8"))["cells"]
    tables = re.split(r"(?m)^\| clients \| cohort .*\n\|[-|]+\n", section("How a round grows"))[1:]
    said = [line.strip("| ").split(" | ") for line in tables[place].splitlines() if line.startswith("|")]
    assert len(said) == len(kept)
    for row, own in zip(said, kept, strict=True):
        counts = ("clients", "cohort", "early_round", "late_round")
        kilobytes = own["bytes_per_round"] / 1000
        assert row == [
            *(f"{own[name]:,}" for name in counts),
            f"{own['ms_early']:.1f}",
            f"{own['ms_late']:.1f}",
            f"{own['ratio']:.2f}",
            *(str(own[name]) for name in ("mib", "mib_late")),
            f"{kilobytes:,.0f}",
            f"{kilobytes / own['cohort']:.1f}",
        ]


HEADS = ("prototypes", "ridge", "LDA")
RULE = "the rule's"
PARTITIONS = {"3 shards": "kind shards, per_client 3", "FedCor 0.3": "kind fedcor, concentration 0.3"}
NO_SETTING = ("arm", "seed", "final_accuracy", "epsilon_true", "bytes_up")


def heads(file: str = "heads_twin.csv", *, together: bool = True) -> pd.DataFrame:
    """Mean accuracies of heads: a row for each setting and epsilon, a column for each arm.

    together: whether the rule's runs and those of the head that it names, which sends as many bytes, count as
    runs of one head.
    """
    found = pd.read_csv(RESULTS / file, comment="#", keep_default_na=False)
    assert (found["epsilon_true"] <= found["privacy.epsilon"] * (1 + 1e-9)).all()
    setting = [name for name in found.columns if name not in NO_SETTING]
    assert (found.groupby([*setting, "arm"])["seed"].nunique() >= 3).all()
    found = found[found["arm"].isin([RULE, *HEADS])].copy()
    if together:
        sent = found.groupby([*setting, "arm"])["bytes_up"].transform("mean")
        found["final_accuracy"] = found.groupby([*setting, sent])["final_accuracy"].transform("mean")
    return found.pivot_table(index=setting, columns="arm", values="final_accuracy", sort=False)


def by_epsilon(own: pd.DataFrame) -> list[str]:
    """The rule's accuracy and the best head's by epsilon, as the table writes them."""
    rows = own.reset_index().set_index("privacy.epsilon")
    told = []
    for epsilon in (0.25, 1.0, 8.0, float("inf")):
        if epsilon not in rows.index:
            told.append("–")
            continue
        named = rows.loc[epsilon, [*HEADS]].astype(float)
        told.append(f"{rows.loc[epsilon, RULE]:.3f}; {named.idxmax()} {named.max():.3f}")
    return told


def test_heads() -> None:
    said = [row for row in cells("Heads on frozen features") if row[1] in PARTITIONS and row[0].isdigit()]
    groups = list(heads().loc[["distributed"]].groupby(level=[0, 1, 2, 3], sort=False))
    assert len(said) == len(groups)
    for (clients, partition, records, *numbers), (key, own) in zip(said, groups, strict=True):
        assert ("distributed", int(clients), PARTITIONS[partition], int(records.replace(",", ""))) == key
        assert numbers == by_epsilon(own)


def test_heads_reach_what_is_asked_of_them() -> None:
    """The best head of 20 clients whose classes are skewed."""
    best = heads().max(axis=1).loc[("distributed", 20, PARTITIONS["3 shards"])]
    assert best[50_000, 1.0] >= 0.79
    assert best[10_000, 1.0] >= 0.75
    assert best[3_000, 1.0] >= 0.70
    assert best[10_000, 0.25] >= 0.70
    assert best[50_000, 8.0] >= best[50_000, float("inf")] - 0.03


@every(
    ("file", "of"),
    [("heads_twin.csv", "CIFAR-10"), ("heads_digits.csv", "digits"), ("heads_other.csv", "pixels of MNIST")],
)
def test_how_good_the_rule_for_heads_is(file: str, of: str) -> None:
    found = heads(file, together=False).dropna()
    near = int((found[RULE] >= found.max(axis=1) - 0.01).sum())
    said = " ".join(section("Heads on frozen features").split())
    assert f"in {near} of {len(found)} settings of {of}" in said


def test_heads_under_other_noise() -> None:
    said = [row for row in cells("Heads on frozen features") if row[0] in ("central", "local")]
    groups = [
        (key, own) for key, own in heads().groupby(level=[0, 1, 2, 3], sort=False) if key[0] != "distributed"
    ]
    assert len(said) == len(groups)
    for (noise, records, *numbers), (key, own) in zip(said, groups, strict=True):
        assert (noise, 20, PARTITIONS["3 shards"], int(records.replace(",", ""))) == key
        assert numbers == by_epsilon(own)


def test_logistic_regression_beside_heads() -> None:
    found = pd.read_csv(RESULTS / "heads_logistic.csv", comment="#")
    assert (found["epsilon_true"] <= found["privacy.epsilon"]).all()
    best = found.groupby(["data.records", "privacy.epsilon"])["final_accuracy"].max()
    said = [row for row in cells("Heads on frozen features") if len(row) == 3 and row[0][0].isdigit()]
    for (records, *numbers), count in zip(said, (3_000, 10_000, 50_000), strict=True):
        assert int(records.replace(",", "")) == count
        assert numbers == [f"{best[count, epsilon]:.3f}" for epsilon in (1.0, 8.0)]


def test_training_from_scratch_beside_heads() -> None:
    found = pd.read_csv(RESULTS / "heads_from_scratch.csv", comment="#")
    own = found.set_index(["arm.protocol", "privacy.epsilon"])["final_accuracy"]
    for name, protocol in (("FedAvg", "fedavg"), ("FedLog, body by DP-SGD", "fedlog")):
        (row,) = [row for row in cells("Heads on frozen features") if row[0] == name]
        assert row[1:] == [f"{own[protocol, epsilon]:.3f}" for epsilon in (1.0, 4.0, 8.0)]


def test_the_day_and_the_versions_of_the_peers() -> None:
    _, day, versions = (RESULTS / "peers.csv").read_text(encoding="utf-8").splitlines()[:3]
    said = section("Simulation beside others")
    assert day.removeprefix("# ").split(",")[0] in said
    for package in ("torch", "pfl", "flwr", "ray"):
        found = re.search(rf"{package} ([\d.]+)", versions)
        assert found is not None
        assert f"{package} {found[1]}" in said


def test_selection_at_one_epsilon() -> None:
    kept = pd.read_csv(RESULTS / "fedprof_private.csv", comment="#")
    last = kept[kept["round"] == kept["round"].max()].pivot(index="seed", columns="arm", values="accuracy")
    reached = kept[kept["accuracy"] >= 0.85].groupby(["arm", "seed"])["round"].min()
    names = ["FedAvg", "Power-of-choice", "FedCor", "FedProf"]
    adjusted = holm([signed_rank(last[name] - last["FedAvg"]) for name in names[1:]])
    for name, p, row in zip(names, [None, *adjusted], cells("Selection at one epsilon"), strict=True):
        own = last[name]
        assert row[0].startswith(name)
        assert row[1] == (f"{reached[name].mean():.1f}" if name in reached.index else "never")
        assert row[2] == f"{own.mean():.3f} ± {own.std():.3f}"
        if p is not None:
            assert row[3] == f"{own.mean() - last['FedAvg'].mean():+.3f}"
            assert row[4] == f"{p:.3f}"


def test_embeddings() -> None:
    kept = pd.read_csv(RESULTS / "fedcor_embeddings.csv", comment="#")
    said = " ".join(section("FedCor on Fashion-MNIST").split())
    assert (kept["nearest_of_one_label"] == 1.0).all()
    assert f"in all {len(kept)} runs every client's nearest neighbour has its label" in said
    within, between = kept["cosine_within"], kept["cosine_between"]
    assert f"{within.min():.2f} to {within.max():.2f} within a label" in said
    assert f"{between.min():.2f} to {between.max():.2f} between labels" in said


def over_no_lambda(file: str, measure: str, classes: int, weight: float) -> tuple[str, float]:
    """How far lambda 0 is from another one, in the page's words, and p by Holm's method for three."""
    table = results_page.read(file)
    by = table[table["classes"] == classes].pivot(index="seed", columns="weight", values=measure)
    others = [own for own in by if own]
    p = holm([signed_rank(by[own] - by[0.0]) for own in others])[others.index(weight)]
    mean, half = student((by[weight] - by[0.0]) * (1 if (by[weight] - by[0.0]).mean() > 0 else -1))
    return f"{mean:.3f} ({mean - half:.3f} to {mean + half:.3f})", p


def test_lambda_against_skew() -> None:
    said = " ".join(section("Lambda against the skew of labels (ADDS)").split())
    found = [
        over_no_lambda("adds_lambda.csv", *case)
        for case in (
            ("local_accuracy", 10, 1.2),
            ("accuracy", 2, 0.8),
            ("local_accuracy", 2, 0.8),
            ("local_accuracy", 1, 1.2),
        )
    ]
    assert all(words in said for words, _ in found)
    assert f"p of these four is {max(p for _, p in found):.3f} at most" in said


def test_alone_sampling_costs_the_more_the_evener_the_labels() -> None:
    """Means fall with lambda at even labels, and the fall shrinks with the skew, as the page says."""
    said = " ".join(section("One client alone (ADDS)").split())
    words, p = over_no_lambda("adds_alone.csv", "accuracy", 10, 1.2)
    assert f"λ 1.2 costs {words} of accuracy, p {p:.3f}" in said
    means = results_page.read("adds_alone.csv").groupby(["classes", "weight"])["accuracy"].mean().unstack()
    assert means.loc[10].is_monotonic_decreasing
    costs = [*(means[0.0] - means[1.2]).loc[[10, 5, 2, 1]]]
    assert costs == sorted(costs, reverse=True)


def test_the_lead_of_private_bodies_on_mnist() -> None:
    table = results_page.read("fedlog_tradeoff_mnist.csv")
    said = section("What epsilon costs FedLog on MNIST")
    bodies = ("DP-SGD, unit norm, central, exact", "public, unit norm, central, exact")
    private, public = (
        results_page.of_body(table, name).set_index(["privacy.epsilon", "seed"])["final_accuracy"]
        for name in bodies
    )
    for epsilon in (1.0, 8.0):
        mean, half = student((private - public)[epsilon])
        assert f"{mean:.3f} ({mean - half:.3f} to {mean + half:.3f}) at ε {epsilon:g}" in said


def test_traces_of_studies_are_of_the_packaged_ones() -> None:
    """Every run of the study is there, to its last round."""
    texts = {path.stem: path.read_text(encoding="utf-8") for path in RESULTS.glob("*.csv")}
    names = [name for name, text in texts.items() if f"study_traces.py {name} " in text.splitlines()[0]]
    assert names
    for name in names:
        text, found = packaged()[name], results_page.read(f"{name}.csv")
        studies = [cell.study for cell in parse_sweep(text).cells] if has_sweep(text) else [parse(text)]
        cells = [own for _, own in found.groupby("cell")] if "cell" in found else [found]
        assert len(cells) == len(studies), name
        for own in cells:
            runs = {(arm.name, seed) for arm in studies[0].arms for seed in studies[0].study.seeds}
            rounds = own.groupby(["arm", "seed"])["round"].agg(["count", "max"])
            assert {*rounds.index} == runs, name
            assert (rounds == studies[0].study.rounds).all(axis=None), name


def test_who_takes_part() -> None:
    """Rounds that a client answered by the quality of its records, under each protocol of two studies."""
    gas = results_page.read("gas_turbine_noise_clients.csv").groupby(["cell", "arm", "quality"])
    quiet, loud = (gas["answered"].mean()[f"noise-deviation-0-{end}"].unstack() for end in ("1", "316"))
    said = section("GasTurbine").replace("\n", " ")
    arms = ["FedProf, alpha 10", "FedProf, alpha 25"]
    assert "in {:.1f} rounds at α 10 and in {:.1f} at α 25".format(*quiet.loc[arms, "clean"]) in said
    assert "a noisy one in {:.1f} and in {:.1f};".format(*quiet.loc[arms, "noisy"]) in said
    assert (loud.loc[arms, ["noisy", "polluted"]] == 0).all(axis=None)
    assert (quiet.loc[arms, "polluted"] == 0).all()
    mnist = results_page.read("mnist_fedprof_clients.csv")
    mnist = mnist[mnist["arm"] == "FedProf (partial)"].set_index("quality")["answered"]
    assert mnist[["blurred", "pixel"]].max() == 0
    words = f"irrelevant ones {mnist['irrelevant']:.1f} times, and clean ones {mnist['clean']:.1f} times"
    assert words in section("MNIST with 500 clients").replace("\n", " ")
    digits = results_page.read("fedprof_mean_only_clients.csv").set_index(["seed", "quality"])
    whole, means = (
        digits.loc[digits["arm"] == arm, "answered"] for arm in ("FedProf", "FedProf (mean-only)")
    )
    assert whole.equals(means)


def test_where_adds_falls_back() -> None:
    found = results_page.read("adds_skew.csv").query("arm == 'ADDS (LRP)'")
    by_round = found.pivot(index="round", columns="seed", values="accuracy")
    assert (by_round.loc[4:].min() < 0.2).sum() == 4
    assert (by_round.iloc[-1] < 0.6).sum() == 3
    said = section("Subnets by skew of labels (ADDS)").replace("\n", " ")
    assert "under four of eight seeds, and ends below 0.6 under three" in said


def test_what_skew_costs_cs_fl() -> None:
    keys = ["data.partition.per_client", "arm.vote_rate", "seed"]
    last = results_page.read("cs_fl_skew.csv").set_index(keys)["final_accuracy"].sort_index()
    costs = [lead(last[10, rate], last[2, rate]) for rate in (0.01, 0.003, 0.001)]
    words = ["{:.3f} ({:.3f} to {:.3f})".format(*cost) for cost in costs]
    said = section("CS-FL by skew of labels").replace("\n", " ")
    assert f"{words[0]}, {words[1]} and {words[2]}" in said


def test_conditions() -> None:
    kept = pd.read_csv(RESULTS / "conditions.csv", comment="#").groupby("arm", sort=False)["accuracy"].last()
    said = re.findall(r"0\.\d{3}", section("FedAvg under four conditions of data"))
    order = ["original", "noisy", "biased", "biased and noisy"]
    assert said == [f"{kept[name]:.3f}" for name in order]


def test_the_readme_says_what_its_picture_shows() -> None:
    """From epsilon 2 on, shares of noise in a masked sum are within 0.02 of noise by a trusted server."""
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert "From ε 2 on, shares of noise inside a masked sum are as accurate, within 0.02, as" in readme
    table = results_page.read("fedlog_tradeoff.csv")
    central, shares = (
        results_page.of_body(table, name).groupby("privacy.epsilon")["final_accuracy"].mean().loc[2:8]
        for name in (
            "public, unit norm, central, exact",
            "the same, masked sum with shares of noise",
        )
    )
    assert len(central) == 3
    assert (central - shares).abs().max() < 0.02


def test_rounds_over_flower() -> None:
    table = pd.read_csv(RESULTS / "federation.csv", dtype=str).set_index(["carrier", "sum", "payload"])
    found = [row for row in cells("Rounds over Flower") if len(row) == 6]  # the section has another table
    assert len(found) * 2 == len(table)
    for carrier, how, *numbers in found:
        own = [table.loc[carrier, how, payload] for payload in ("262 kB", "4 MB")]
        assert numbers == [row[name] for row in own for name in ("cpu_ms", "wall_ms")]


def test_poisoned_clients() -> None:
    table = results_page.read("fltrust_poisoned.csv")
    by = table.pivot(index="seed", columns=["arm", "study.name"], values="final_accuracy")
    said = " ".join(section("Poisoned clients, and trust by cosine").split())
    names = [*table["study.name"].unique()]
    lost = {
        arm: [lead(by[arm]["honest"], by[arm][name]) for name in names[1:4]] for arm in ("FedAvg", "FLTrust")
    }
    for mean, low, high in lost["FedAvg"]:
        assert f"{mean:.3f} ({low:.3f} to {high:.3f})" in said
    assert all(low <= 0 for _, low, _ in lost["FLTrust"])
    assert f"end at {max(high for *_, high in lost['FLTrust']):.3f}." in said


def lead(own: pd.Series, rival: pd.Series) -> tuple[float, float, float]:
    """The mean lead in accuracy over the same seeds, and its 95 % interval by Student's t."""
    assert own.index.equals(rival.index)
    assert len(own) == 8
    mean, half = student(own - rival)
    return mean, mean - half, mean + half


def test_frozen_parts() -> None:
    table = results_page.read("frozen_parts.csv")
    by = table[table["epsilon"] == 1].pivot(index="seed", columns="model", values="accuracy")
    said = " ".join(section("Frozen parts at an epsilon per client").split())
    whole, *parts = table["model"].unique()
    for part in parts:
        assert "{:.3f} ({:.3f} to {:.3f}) ahead".format(*lead(by[whole], by[part])) in said
    assert f"p {max(holm([signed_rank(by[whole] - by[part]) for part in parts])):.3f} at most" in said


def test_a_bound_that_adapts() -> None:
    """How far it ends from the best fixed bound, from each of three starts."""
    keys = ["study.name", "local.update_bound", "seed"]
    table = results_page.read("adaptive_clipping.csv").set_index(keys)["final_accuracy"].sort_index()
    best = table["Fixed"].groupby(level=0).mean().idxmax()
    gaps = [lead(table["Adaptive", start], table["Fixed", best]) for start in (0.03, 0.3, 3.0)]
    assert min(gap for gap, *_ in gaps) >= -0.02
    said = section("A bound that adapts").replace("\n", " ")
    assert f"best fixed bound of {best:g}" in said
    assert (
        "{:.3f} ({:.3f} to {:.3f}), {:.3f} ({:.3f} to {:.3f}) and {:.3f} ({:.3f} to {:.3f})".format(
            *(number for gap in gaps for number in gap)
        )
        in said
    )


def test_no_target_is_exceeded() -> None:
    table = pd.read_csv(RESULTS / "targets.csv", dtype=str, comment="#")
    told = pd.to_numeric(table["epsilon told"], errors="coerce").dropna()
    assert (told <= 5).all()


def test_noise_per_client() -> None:
    """Correlated noise at epsilon 2 is as accurate as independent noise at 4.5, as far as seeds tell."""
    keys = ["privacy.bands", "local.bound_quantile", "privacy.epsilon", "seed"]
    table = results_page.read("client_level_matrix.csv").set_index(keys)["final_accuracy"].sort_index()
    said = section("Noise correlated over rounds").replace("\n", " ")
    beside = [lead(table[bands, "not set", 2.0], table["1", "not set", 4.5]) for bands in ("20", "blt")]
    same = [lead(table[bands, "not set", 2.0], table["1", "not set", 2.0]) for bands in ("20", "blt")]
    assert "{:.3f} with BandMF and {:.3f} with BLT".format(*(gap for gap, *_ in beside)) in said
    assert (
        "are {:.3f} to {:.3f} and {:.3f} to {:.3f}".format(*(end for _, *ends in beside for end in ends))
        in said
    )
    assert "is {:.3f} ({:.3f} to {:.3f}) and {:.3f} ({:.3f} to {:.3f})".format(*same[0], *same[1]) in said
    adaptive = [lead(table["1", "0.5", at], table["1", "not set", at]) for at in (4.5, 2.0, 1.0)]
    assert "{:.3f} at ε 4.5, {:.3f} at 2, {:.3f} at 1".format(*(mean for mean, *_ in adaptive)) in said
    assert [low <= 0 <= high for _, low, high in adaptive] == [True, True, False]


def test_the_twin_of_pfl() -> None:
    """Correlated noise is ahead of independent noise under every seed, and a bound that adapts behind it."""
    said = section("A twin of pfl-research's CIFAR-10").replace("\n", " ")
    rivals, ps = ["BLT", "BandMF", "independent, adaptive"], []
    for part, own in results_page.read("pfl_cifar10.csv").groupby("data.partition", sort=False):
        by = own.pivot(index="seed", columns="study.name", values="final_accuracy")
        assert len(by.dropna()) == 8
        gaps = by[rivals].sub(by["independent"], axis=0)
        ps += holm([signed_rank(gaps[rival]) for rival in rivals])
        assert "{:.3f} more with BLT, {:.3f} more with BandMF".format(*gaps.mean()) in said, part
        assert f"{-gaps[rivals[2]].mean():.3f} less with a bound that adapts" in said
        assert gaps[["BLT", "BandMF"]].min(axis=None) > 0
    assert f"p {max(ps):.3f}" in said


def test_what_an_hour_of_fuzzing_came_to() -> None:
    found = results_page.read("fuzz.csv")["CPU seconds"]
    said = re.search(r"The hour came to (\d+) of them\*\* for (\d+) targets: one got (\d+) to (\d+) of", TEXT)
    assert said
    assert [*map(int, said.groups())] == [*map(round, (found.sum(), len(found), found.min(), found.max()))]
