"""Cells of a sweep, its tables, its series and its page."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tiny_study import FEDAVG, text

from securefl.core.errors import ConfigError, DataError
from securefl.study.config import parse
from securefl.sweep import page as sweep_page
from securefl.sweep.cells import Sweep, claim, has_sweep, in_force, parse_sweep, show
from securefl.sweep.report import as_json
from securefl.sweep.run import FACTS, METRICS, finish
from securefl.sweep.tradeoff import Point, filters, results_table, series_of, student, summary_table
from securefl.sweep.tradeoff_plots import drawings

EVIL = "<script>alert('x')</script>"
NOISED = (
    text("", unprotected="[]")
    .replace('noise = "none"', 'noise = "local"')
    .replace('against = ["server", "key-holder", "others"]', 'against = ["server", "others"]')
)
ARMS = "".join(
    f'[[arm]]\nname = "{name}"\nprotocol = "fedlog"\nclip = {{ kind = "{clip}" }}\n'
    for name, clip in (("unit", "unit-l2"), ("bounded", "bounded"))
)


def sweep(grid: str = "", *lists: str, study: str = NOISED + ARMS) -> Sweep:
    tables = "".join(f"[[sweep.list]]\n{entry}\n" for entry in lists)
    return parse_sweep(study + (f"[sweep.grid]\n{grid}\n" if grid else "") + tables)


EPSILONS = '"privacy.epsilon" = [1.0, 4.0, inf]'
LISTS = ('"privacy.calibration" = "exact"', '"privacy.calibration" = "paper"')


# Cells ------------------------------------------------------------------------------------------


def test_the_grid_is_taken_for_every_entry_of_the_list() -> None:
    found = sweep(EPSILONS + '\n"study.rounds" = [1, 2]', *LISTS)

    assert found.keys == ("privacy.calibration", "privacy.epsilon", "study.rounds")
    assert len(found.cells) == 2 * 3 * 2
    seen = [(c.study.privacy.calibration, c.study.privacy.epsilon, c.study.study.rounds) for c in found.cells]
    assert seen[:3] == [("exact", 1.0, 1), ("exact", 1.0, 2), ("exact", 4.0, 1)]
    assert seen[-1] == ("paper", math.inf, 2)
    assert found.cells[0].name == "calibration = exact, epsilon = 1, rounds = 1"
    assert found.cells[-1].folder == "calibration-paper-epsilon-inf-rounds-2"
    assert len({cell.folder for cell in found.cells}) == 12


def test_a_cell_is_a_study_of_its_own() -> None:
    cell = sweep(EPSILONS).cells[1]
    again = parse(cell.study.text)
    assert again == cell.study
    assert again.privacy.epsilon == 4.0
    assert again.study.seeds == (3,)
    assert "sweep" not in cell.study.text


def test_an_arm_key_reaches_every_arm_and_tables_grow_where_there_are_none() -> None:
    found = sweep('"arm.clip.bound" = [0.5, 2.0]\n"network.dropout" = [0.25]\n' + EPSILONS)
    assert [arm.options.clip.bound for arm in found.cells[-1].study.arms] == [2.0, 2.0]  # type: ignore[attr-defined]
    assert [arm.options.clip.kind for arm in found.cells[-1].study.arms] == ["unit-l2", "bounded"]  # type: ignore[attr-defined]
    assert found.cells[0].study.network.dropout == 0.25
    assert "dropout" not in found.cells[0].name, "what all cells share does not set one apart"


def test_folders_of_values_with_one_slug_differ() -> None:
    plain = text(FEDAVG)
    found = sweep('"study.name" = ["a b", "a-b", "A B"]', study=plain)
    assert [cell.folder for cell in found.cells] == ["name-a-b", "name-a-b-2", "name-a-b-3"]
    long = sweep(f'"study.name" = ["{"x" * 199}", "{"x" * 200}"]', study=plain)
    assert all(len(cell.folder) < 110 for cell in long.cells)
    assert len({cell.folder for cell in long.cells}) == 2


@pytest.mark.parametrize(
    ("section", "part"),
    [
        ('[sweep.grid]\n"privacy.epsilonn" = [1.0]', "In the cell epsilonn = 1: [privacy] Unknown key"),
        ('[sweep.grid]\n"privacy.epsilonn" = [1.0]', "did you mean `epsilon`?"),
        ('[sweep.grid]\n"privcy.epsilon" = [1.0]', "Unknown section [privcy] (did you mean `privacy`?)"),
        ('[sweep.grid]\n"privacy.epsilon" = [1.0, -1.0]', "In the cell epsilon = -1: "),
        ('[sweep.grid]\n"arm.clipp.kind" = ["none"]\n' + EPSILONS, "Unknown key `clipp`"),
        (
            '[sweep.grid]\n"privacy.epsilon" = [1.0]\n"privacy.epsilon.x" = [1.0]',
            "Expected tables along the path",
        ),
        ("[sweep.grid]\nprivacy.epsilon = [1.0]", 'in quotes, such as "privacy.epsilon" = ..., got'),
        ('[sweep.grid]\n"epsilon" = [1.0]', 'in quotes, such as "privacy.epsilon" = ..., got'),
        ('[[sweep.list]]\nprivacy.noise = "local"', 'in quotes, such as "privacy.noise" = ..., got'),
        ('[sweep.grid]\n"privacy.epsilon" = 1.0', "Expected a list of values of `privacy.epsilon`"),
        ('[sweep.grid]\n"privacy.epsilon" = []', "Expected a list of values of `privacy.epsilon`"),
        ('[sweep.grid]\n"privacy.epsilon" = [1.0, 1.0]', "epsilon = 1 twice"),
        (f'[sweep.grid]\n{EPSILONS}\n[[sweep.list]]\n"privacy.epsilon" = 1.0', "Keep one of them"),
        ("[sweep]\ngird = 1", "Unknown key `gird` (did you mean `grid`?)"),
        ("[sweep]", "Expected a table [sweep.grid] or tables [[sweep.list]]"),
        ("", "Expected [sweep.grid] or [[sweep.list]] to sweep over"),
    ],
)
def test_what_the_study_would_refuse_names_the_cell(section: str, part: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(part)) as caught:
        parse_sweep(NOISED + ARMS + section)
    assert "\n" not in str(caught.value)


def test_a_sweep_is_told_from_a_study() -> None:
    assert has_sweep(NOISED + ARMS + "[sweep.grid]\n" + EPSILONS)
    assert not has_sweep(NOISED + ARMS)
    assert not has_sweep("x = [")


def test_a_folder_is_one_sweeps(tmp_path: Path) -> None:
    claim(tmp_path / "a", sweep(EPSILONS))
    claim(tmp_path / "a", sweep(EPSILONS))
    with pytest.raises(ConfigError, match="holds a sweep of another configuration; choose another folder"):
        claim(tmp_path / "a", sweep(EPSILONS, *LISTS))


def test_values_in_force_include_defaults() -> None:
    found = sweep("", '"privacy.epsilon" = 1.0\n"arm.clip.kind" = "bounded"', '"privacy.epsilon" = 2.0')
    first, second = found.cells
    unit, bounded = second.study.arms
    assert in_force(first, "arm.clip.kind", first.study.arms[0]) == "bounded"
    assert [in_force(second, "arm.clip.kind", arm) for arm in (unit, bounded)] == ["unit-l2", "bounded"]
    assert in_force(second, "privacy.calibration", unit) == "exact"
    assert in_force(second, "arm.protocol", unit) == "fedlog"
    assert in_force(second, "arm.nothing.here", unit) is None
    assert show(in_force(second, "arm.clip", unit)) == "kind unit-l2, bound 1"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (math.inf, "inf"),
        (0.5, "0.5"),
        (3, "3"),
        (True, "true"),
        ("x", "x"),
        (None, "not set"),
        ([84, 2], "[84, 2]"),
    ],
)
def test_values_are_shown_short(value: Any, shown: str) -> None:
    assert show(value) == shown


# Tables and series ------------------------------------------------------------------------------


def row(arm: str, seed: int, number: int, accuracy: float, epsilon: Mapping[str, float]) -> dict[str, Any]:
    return {
        "arm": arm,
        "seed": seed,
        "round": number,
        "accuracy": accuracy,
        "loss": 1.0,
        "bytes_up": 1000,
        "bytes_down": 500,
        "seconds": 1.0,
        **{f"epsilon_{party}": value for party, value in epsilon.items()},
    }


def fill(found: Sweep, out: Path, *, leave: int = 0) -> None:
    """Folders as finished cells leave them, of three seeds and two rounds, but for the last `leave`."""
    for place, cell in enumerate(found.cells[: len(found.cells) - leave]):
        folder = out / "cells" / cell.folder
        folder.mkdir(parents=True)
        asked = cell.study.privacy.epsilon or math.inf
        rows, endless = [], {}
        for a, arm in enumerate(cell.study.arms):
            spent = math.inf if a or asked == math.inf else 0.9 * asked
            endless[arm.name] = "one record moves the sum without bound" if spent == math.inf else ""
            epsilon = {"server": spent, "key-holder": 99.0, "others": spent / 2}
            for seed in (1, 2, 3):
                for number in (1, 2):
                    accuracy = 0.1 * number + 0.01 * seed + 0.02 * place
                    rows.append(row(arm.name, seed, number, accuracy, epsilon))
        pd.DataFrame(rows).to_csv(folder / "metrics.csv", index=False)
        card = [
            {
                "party": "server",
                "arms": list(endless),
                "learns": "sums",
                "epsilon": f"{asked:.3g}".replace("inf", "∞"),
            }
        ]
        finish(folder, cell.study, card, endless)


@pytest.fixture
def swept() -> Sweep:
    return sweep(EPSILONS, *LISTS, study=NOISED.replace("target = 0.2", "target = 0.25") + ARMS)


def test_a_cell_that_was_copied_over_another_is_refused(swept: Sweep, tmp_path: Path) -> None:
    fill(swept, tmp_path)
    first, second = (tmp_path / "cells" / cell.folder for cell in swept.cells[:2])
    shutil.rmtree(second)
    shutil.copytree(first, second)
    with pytest.raises(DataError, match=r"is of another cell than .* copied or swapped"):
        results_table(swept, tmp_path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (FACTS, b'{"card": [], "en'),
        (FACTS, b"{}"),
        (FACTS, b"[]"),
        (FACTS, b"\xff"),
        (METRICS, b"arm,seed\n"),
        (METRICS, None),
    ],
)
def test_a_cell_that_was_damaged_is_named(
    name: str, content: bytes | None, swept: Sweep, tmp_path: Path
) -> None:
    fill(swept, tmp_path)
    path = tmp_path / "cells" / swept.cells[1].folder / name
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=r"Remove .*cell\.json and run the sweep again") as caught:
        results_table(swept, tmp_path)
    assert str(path.parent) in str(caught.value)


def test_tables_have_every_row_and_key(swept: Sweep, tmp_path: Path) -> None:
    fill(swept, tmp_path, leave=1)
    results = results_table(swept, tmp_path)
    assert len(results) == 5 * 2 * 3 * 2
    head = ["cell", "privacy.calibration", "privacy.epsilon", "arm", "protocol", "seed", "round", "accuracy"]
    assert list(results.columns[:8]) == head
    assert {"bytes_up", "bytes_down", "epsilon_server", "epsilon_key-holder"} <= set(results.columns)
    assert set(results["privacy.epsilon"]) == {1.0, 4.0, math.inf}

    summary = summary_table(swept, tmp_path, results)
    assert len(summary) == 5 * 2 * 3
    first = summary.iloc[0]
    assert (first["arm"], first["seed"], first["protocol"]) == ("unit", 1, "fedlog")
    assert first["final_accuracy"] == pytest.approx(0.21)
    assert first["rounds"] == 2
    assert first["bytes_up"] == 2000
    assert first["bytes_down"] == 1000
    assert first["epsilon_true"] == pytest.approx(0.9), "the key holder is trusted, the server is not"
    assert first["epsilon_key-holder"] == 99.0
    assert pd.isna(first["rounds_to_target"])
    assert summary["rounds_to_target"].iloc[-1] == 2, "0.2 + 0.03 + 0.08 passes 0.25"
    assert summary_table(swept, tmp_path / "none", results_table(swept, tmp_path / "none")).empty


def test_json_has_the_summary_and_what_failed(swept: Sweep, tmp_path: Path) -> None:
    fill(swept, tmp_path, leave=1)
    summary = summary_table(swept, tmp_path, results_table(swept, tmp_path))
    found = json.loads(
        json.dumps(as_json(swept, tmp_path, summary, {"a cell": "no memory"}), allow_nan=False)
    )
    assert found["failed"] == {"a cell": "no memory"}
    assert found["page"] == str(tmp_path / "sweep.html")
    assert len(found["summary"]) == len(summary)
    first = found["summary"][0]
    assert (first["rounds_to_target"], first["seed"], first["privacy.epsilon"]) == (None, 1, 1.0)
    assert found["summary"][-1]["epsilon_true"] == "inf"
    nothing = as_json(swept, tmp_path, summary.iloc[:0], {"a cell": "no memory"})
    assert (nothing["summary"], nothing["page"]) == ([], None)


def test_an_arm_may_have_the_name_of_a_missing_value(tmp_path: Path) -> None:
    found = sweep(EPSILONS, study=NOISED + ARMS.replace('"unit"', '"nan"'))
    fill(found, tmp_path)
    assert set(results_table(found, tmp_path)["arm"]) == {"nan", "bounded"}


def test_series_are_arms_under_one_setting(swept: Sweep, tmp_path: Path) -> None:
    fill(swept, tmp_path)
    series = series_of(swept, summary_table(swept, tmp_path, results_table(swept, tmp_path)))
    assert [own.label for own in series] == ["unit, exact", "bounded, exact", "unit, paper", "bounded, paper"]
    assert [own.number for own in series] == [0, 1, 2, 3]
    assert [own.endless for own in series] == [False, True, False, True]
    assert filters(swept, series) == {"arm": ["unit", "bounded"], "privacy.calibration": ["exact", "paper"]}
    points = series[0].points("final_accuracy")
    assert [p.asked for p in points] == [1.0, 4.0, math.inf]
    assert [p.mean for p in points] == pytest.approx([0.22, 0.24, 0.26])


def test_settings_that_go_together_are_named_once(tmp_path: Path) -> None:
    lists = [
        f'"privacy.noise" = "local"\n"privacy.delta" = {d}\n"study.rounds" = {r}'
        for d, r in ((1e-4, 2), (1e-6, 3))
    ]
    found = sweep(EPSILONS, *lists)
    fill(found, tmp_path)
    series = series_of(found, summary_table(found, tmp_path, results_table(found, tmp_path)))
    assert series[0].label == "unit, delta 0.0001"
    assert set(filters(found, series)) == {"arm", "privacy.delta"}, "one box for both"


def test_what_follows_from_epsilon_is_no_series_of_its_own(tmp_path: Path) -> None:
    """Such as a noise multiplier that was written down for each epsilon."""
    lists = [f'"privacy.epsilon" = {e}\n"privacy.delta" = {d}' for e, d in ((1.0, 1e-4), (2.0, 1e-6))]
    found = sweep("", *lists)
    fill(found, tmp_path)
    series = series_of(found, summary_table(found, tmp_path, results_table(found, tmp_path)))
    assert [own.label for own in series] == ["unit", "bounded"]
    assert [point.asked for point in series[0].points("final_accuracy")] == [1.0, 2.0]


def test_the_band_is_students() -> None:
    mean, half = student([1.0, 2.0, 3.0])
    assert mean == 2.0
    assert half == pytest.approx(4.302653 / math.sqrt(3), rel=1e-6), "t(0.975, 2), deviation 1"
    assert student([5.0])[0] == 5.0
    assert math.isnan(student([5.0])[1])
    assert math.isnan(student([])[0])
    point = Point.of(1.0, pd.Series([1, None, 3], dtype="Int64"))
    assert (point.mean, point.missing) == (2.0, 1)


# Figures and page -------------------------------------------------------------------------------


class Page(HTMLParser):
    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    handle_startendtag = handle_starttag

    def handle_data(self, data: str) -> None:
        self.text += data


def page(found: Sweep, out: Path, failed: Mapping[str, str] | None = None) -> str:
    series = series_of(found, summary_table(found, out, results_table(found, out)))
    return sweep_page.render(found, out, series, failed or {}, "securefl sweep x")


def test_figures_are_those_there_is_data_for(swept: Sweep, tmp_path: Path) -> None:
    fill(swept, tmp_path)
    series = series_of(swept, summary_table(swept, tmp_path, results_table(swept, tmp_path)))
    names = [d.name for d in drawings(series, epsilon_swept=True, legend=True)]
    assert names == ["accuracy_epsilon", "rounds_epsilon", "accuracy_bytes"]
    assert [d.name for d in drawings(series, epsilon_swept=False, legend=True)] == ["accuracy_bytes"]
    axes = drawings(series, epsilon_swept=True, legend=False)[0].figure.axes[0]
    assert axes.get_xscale() == "log"
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["1", "4", "no noise"]
    ticks = axes.get_xticks()
    assert ticks[2] > ticks[1] == 4.0
    lines = {line.get_gid(): line for line in axes.lines if line.get_gid()}
    assert np.asarray(lines["series-0-line-0"].get_ydata()) == pytest.approx([0.22, 0.24])
    assert np.asarray(lines["series-0-no-noise-0"].get_ydata()) == pytest.approx([0.26])
    at = float(np.asarray(lines["series-0-no-noise-0"].get_xdata())[0])
    assert 4.0 < at < ticks[2], "left of the middle, as the first of four"
    assert lines["series-1-line-0"].get_markerfacecolor() == "white", "holds no epsilon"
    assert lines["series-0-line-0"].get_markerfacecolor() != "white"


def test_the_page_loads_nothing_and_runs_its_script_alone(swept: Sweep, tmp_path: Path) -> None:
    fill(swept, tmp_path)
    source = page(swept, tmp_path)
    found = Page(source)
    assert re.search(r"https?://", source) is None
    assert not {"link", "iframe", "object", "embed", "img", "image"} & {tag for tag, _ in found.tags}
    loads = [v for _, attrs in found.tags for k, v in attrs.items() if k in ("src", "href") and v]
    assert all(value.startswith("#") for value in loads)
    policy = next(a["content"] for t, a in found.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith(f"default-src 'none'; script-src '{sweep_page.script_digest()}'; ")
    assert "unsafe-inline" not in policy.replace("style-src 'unsafe-inline'", "")
    assert source.count("<script") == 1
    assert f"<script>{sweep_page.SCRIPT}</script>" in source
    ids = [attrs["id"] for _, attrs in found.tags if "id" in attrs]
    assert len(set(ids)) == len(ids), "figures share no names"
    used = set(re.findall(r'url\(#([^)]+)\)|href="#([^"]+)"', source))
    assert {a or b for a, b in used} <= set(ids), "every reference is there"


def test_the_page_says_what_is_true(swept: Sweep, tmp_path: Path) -> None:
    fill(swept, tmp_path, leave=1)
    source = page(swept, tmp_path, {"calibration = paper, epsilon = inf": "no memory"})
    found = Page(source)
    words = " ".join(found.text.split())
    assert "Infinite (∞): one record moves the sum without bound." in words
    assert "0.9 3.6 infinite per record (replace-one), δ = 0.0001, against server and others" in words
    assert "calibration = paper, epsilon = inf: no memory" in words
    assert sum(tag == "svg" and a.get("role") == "img" for tag, a in found.tags) == 3
    values = [a["value"] for tag, a in found.tags if tag == "input"]
    assert values == ["0-0", "0-1", "1-0", "1-1"]
    groups = [a["data-in"] for tag, a in found.tags if "data-in" in a]
    assert groups == ["0-0 1-0", "0-1 1-0", "0-0 1-1", "0-1 1-1"]
    assert not any("off" in (a.get("class") or "").split() for _, a in found.tags), (
        "without script all is seen"
    )
    assert "The same holds in 3 more cells" in words
    assert words.count("The same holds in") == 1, "the finite cells share a card, the endless one has its own"


def test_everything_on_the_page_is_escaped(tmp_path: Path) -> None:
    arms = ARMS.replace('"unit"', f'"{EVIL} $x_1$ url(#a)"')
    found = sweep(EPSILONS, study=NOISED.replace('name = "tiny"', f'name = "{EVIL}"') + arms)
    fill(found, tmp_path)
    source = page(found, tmp_path, {EVIL: EVIL})
    assert source.count("<script") == 1
    assert f"{EVIL} $x_1$ url(#a)" in Page(source).text


def test_a_grid_of_more_cells_than_anybody_runs_is_refused_before_one_is_made() -> None:
    seeds = ", ".join(f"[{seed}]" for seed in range(1000))
    grid = f'"study.seeds" = [{seeds}]\n'
    for other in ("data.clients", "local.epochs", "local.batch_size", "model.hidden"):
        grid += f'"{other}" = {list(range(1, 101))}\n'
    with pytest.raises(ConfigError, match=r"at most 2,000 cells, got 100,000,000,000; sweep over less"):
        sweep(grid)
