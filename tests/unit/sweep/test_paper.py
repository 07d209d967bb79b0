"""The figure and the table of a paper: what they show, at which size, and what they refuse."""

from __future__ import annotations

import io
import json
import math
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from pathlib import Path

import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from support.command_line import said as typed
from support.every import every
from support.tiny_sweep import ARMS, EPSILONS, LISTS, NOISED, ONE, finished, plain_run, sweep

import securefl
from securefl.core.errors import ConfigError, DataError
from securefl.report.latex import tabular
from securefl.report.paper import inches, styled, write_figure
from securefl.report.significance import student
from securefl.report.style import look
from securefl.study.comparison import compared
from securefl.study.privacy_statement import as_latex as statement_in_latex
from securefl.sweep.cells import Sweep, claim, parse_sweep
from securefl.sweep.gathered import gather
from securefl.sweep.paper import as_csv, as_latex, as_markdown, drawn, numbers


@pytest.fixture
def blank_plots() -> None:
    """This module looks at plots."""


def per_client() -> Sweep:
    study = NOISED.replace('unit = "record"', 'unit = "client"').replace('"replace-one"', '"zero-out"')
    arm = ONE.replace('clip = { kind = "unit-l2" }', "client_bound = 4.0")
    return sweep(EPSILONS, study=study.replace("delta = 1e-4", "delta = 1e-3") + arm)


def noised(folder: Path, **more: object) -> Path:
    return finished(sweep(EPSILONS, study=NOISED + ONE), folder, seeds=6, **more)


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep that is only read."""
    return noised(tmp_path_factory.mktemp("swept") / "a")


def texts(figure: Figure) -> list[Text]:
    return [own for own in figure.findobj(Text) if own.get_visible() and own.get_text()]  # type: ignore[attr-defined]


def test_a_sweep_is_a_line_with_ticks_at_its_epsilons(swept: Path) -> None:
    figure = securefl.figure(swept)
    (axes,) = figure.axes
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["0.9", "3.6", "∞"], "the true epsilons"
    assert figure.get_figwidth() == 3.3
    assert axes.get_xlabel() == "true epsilon per record at delta 0.0001"
    (band, *_) = [own for own in axes.collections if type(own).__name__.startswith("FillBetween")]
    mean, half = student([0.2 + 0.01 * seed for seed in range(1, 7)])
    heights = band.get_paths()[0].vertices[:, 1]
    assert heights.min() == pytest.approx(mean - half), "the interval that the table prints"
    table = numbers(gather([swept]).series)
    assert table["half_width"].iloc[0] == pytest.approx(half)


def test_units_are_side_by_side_and_a_run_without_noise_is_a_line_across(swept: Path, tmp_path: Path) -> None:
    folders = [
        swept,
        finished(per_client(), tmp_path / "client", seeds=6),
        plain_run(tmp_path / "plain", [0.8, 0.81, 0.82, 0.83, 0.84]),
    ]
    figure = securefl.figure(*folders)
    assert [axes.get_title() for axes in figure.axes] == ["per record", "per client"]
    labels = [axes.get_xlabel().replace("\n", " ") for axes in figure.axes]
    assert labels == [
        "true epsilon per record at delta 0.0001",
        "true epsilon per client at delta 0.001",
    ]
    for axes in figure.axes:
        across = [line for line in axes.lines if line.get_label() == "unit, no noise"]
        assert [line.get_ydata()[0] for line in across] == [pytest.approx(0.82)]
        assert across[0].get_color() == look(0).colour, "a method has one colour"
    named = [text.get_text() for text in figure.legends[0].get_texts()]
    assert named == ["unit", "unit, no noise", "one constant answer"]


def test_runs_of_several_epsilons_are_one_line(swept: Path) -> None:
    """Somebody who ran each epsilon by itself gets the figure of a sweep."""
    alone, together = gather(sorted((swept / "cells").iterdir())), gather([swept])
    assert [own.label for own in (*alone.series, *alone.unprotected)] == ["unit", "unit, no noise"]
    assert numbers(alone.series).equals(numbers(together.series).iloc[:2])


def test_a_setting_that_was_swept_has_a_line_for_each_value(tmp_path: Path) -> None:
    rounds = ['"study.rounds" = 1', '"study.rounds" = 2']
    swept = finished(sweep(EPSILONS, *rounds, study=NOISED + ONE), tmp_path / "a")
    assert [own.label for own in gather([swept]).series] == ["rounds = 1", "rounds = 2"]
    workers = finished(
        sweep('"privacy.epsilon" = [1.0]\n"runtime.workers" = [1, 2]', study=NOISED + ONE), tmp_path / "c"
    )
    assert [own.label for own in gather([workers]).series] == ["workers = 1", "workers = 2"]
    seeds = ['"study.seeds" = [1, 2, 3]', '"study.seeds" = [4, 5, 6]']
    other = finished(sweep(EPSILONS, *seeds, study=NOISED + ONE), tmp_path / "b")
    for cell in (other / "cells").iterdir():
        table = pd.read_csv(cell / "metrics.csv")
        table["seed"] += 3 * ("4" in cell.name.partition("epsilon")[0])
        table.to_csv(cell / "metrics.csv", index=False)
    (series,) = gather([other]).series
    assert {len(point.values) for point in series.points()} == {6}, "seeds are one line"


def test_text_is_readable_and_does_not_overlap(tmp_path: Path) -> None:
    grid = '"privacy.epsilon" = [0.25, 0.5, 1.0, 1.1, 2.0, 4.0, 8.0, 16.0, inf]'
    long = NOISED + ARMS.replace('"unit"', '"a method with a name of some words"')
    folders = (
        finished(sweep(grid, *LISTS, study=long), tmp_path / "a", seeds=5),
        finished(per_client(), tmp_path / "b", seeds=5),
    )
    for width in (3.3, 2.5, 7.0):
        with pytest.warns(UserWarning, match="no finite epsilon"):
            figure = securefl.figure(*folders, width=width)
        require_readable(figure)


def require_readable(figure: Figure) -> None:
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    assert min(text.get_fontsize() for text in texts(figure)) >= 7
    renderer, whole = canvas.get_renderer(), figure.bbox
    for text in texts(figure):
        box = text.get_window_extent(renderer)
        assert whole.x0 - 1 <= box.x0 < box.x1 <= whole.x1 + 1, text.get_text()
    for axes in figure.axes:
        boxes = [tick.get_window_extent(renderer) for tick in axes.get_xticklabels()]
        assert all(left.x1 < right.x0 for left, right in pairwise(boxes))
        assert axes.get_window_extent(renderer).height > 60, "the legend leaves room"


@every(("ending", "begin"), [("pdf", b"%PDF-"), ("svg", b"<?xml"), ("png", b"\x89PNG")])
def test_each_format_is_written_and_has_no_date(
    swept: Path, tmp_path: Path, ending: str, begin: bytes
) -> None:
    out, written = tmp_path / f"f.{ending}", []
    for _ in range(2):
        told = typed("figure", swept, "-o", out, "--width", "84mm")
        assert told.exit_code == 0, told.output
        written.append(out.read_bytes())
    assert written[0].startswith(begin)
    assert written[0] == written[1]
    assert ending != "pdf" or b"/Type3" not in written[0]


def test_a_style_of_ones_own_has_its_fonts_and_colours(swept: Path, tmp_path: Path) -> None:
    style = tmp_path / "own.mplstyle"
    style.write_text(
        "font.size : 9.5  # larger\nfont.family: serif\n\naxes.prop_cycle: cycler('color', ['00ff00', 'k'])\n"
        'lines.linewidth: 3\ngrid.color: "#123456"\n'
    )
    figure = securefl.figure(swept, style=style)
    (axes,) = figure.axes
    (line,) = [own for own in axes.lines if own.get_label() == "unit"]
    assert line.get_color() == "#00ff00"
    assert line.get_linewidth() == pytest.approx(3.6)
    assert axes.xaxis.label.get_fontsize() == 9.5
    assert axes.get_xticklabels()[0].get_fontfamily() == ["serif"]
    assert look(0).colour != "#00ff00", "of this figure alone"


@every(
    "line",
    [
        "import os",
        "axes.prop_cycle: __import__('os').system('touch PWNED')",
        "axes.prop_cycle: cycler('color', [open('PWNED', 'w')])",
        "axes.prop_cycle: cycler('color', ['r']) + cycler('ls', ['-'])",
        "axes.prop_cycle: cycler('color', ['no colour'])",
        "axes.prop_cycle: cycler('color', [['r']])",
        "axes.prop_cycle: cycler('color', [])",
        "axes.prop_cycle: cycler('color, ['r'])",
        "axes.prop_cycle: (((",
        "figure.hooks: os:getcwd",
        "text.usetex: True",
        r"text.latex.preamble: \immediate\write18{touch PWNED}",
        r"pgf.preamble: \input{x}",
        "backend: module://os",
        "animation.ffmpeg_path: /bin/sh",
        "font.size: large amounts",
        "axes.no_such_thing: 1",
    ],
)
def test_a_style_with_code_is_refused_by_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    style = tmp_path / "own.mplstyle"
    style.write_text(f"# a style\nfont.size: 9\n{line}\n")
    with (
        pytest.raises(ConfigError, match=r"own\.mplstyle, line 3: expected .* leave the line out"),
        styled(style),
    ):
        pass
    assert not (tmp_path / "PWNED").exists()
    assert os.listdir(tmp_path) == ["own.mplstyle"]


@every("width", ["0", "0in", "-3in", "nan", "inf", "1e9", "3 feet", "", "99in"])
def test_a_width_without_room_is_refused(width: str) -> None:
    with pytest.raises(ConfigError, match=r"Expected a width from 1in to 20in, such as 3\.3in or 84mm, got"):
        inches(width)


def test_widths_are_in_inches() -> None:
    assert [inches(own) for own in (3.3, "3.3in", "25.4mm", "2.54cm")] == pytest.approx([3.3, 3.3, 1, 1])


def test_a_table_has_a_row_for_each_method_and_its_intervals(swept: Path, tmp_path: Path) -> None:
    found = gather([swept, plain_run(tmp_path / "plain", [0.8, 0.9])])
    every_series = [*found.series, *found.unprotected]
    mean, half = student([0.2 + 0.01 * seed for seed in range(1, 7)])
    lines = as_markdown(every_series).splitlines()
    assert lines[0] == "| Final accuracy at epsilon | 1 | 4 | ∞ |"
    assert lines[2].startswith(f"| unit | {mean:.3f} ± {half:.3f} | ")
    assert lines[3] == "| unit, no noise | – | – | 0.850 (0.800, 0.900) |"
    table = pd.read_csv(io.StringIO(as_csv(every_series)))
    assert table["accuracy"].iloc[0] == mean
    assert table["half_width"].iloc[0] == half
    assert (table["seeds"].iloc[0], table["epsilon"].iloc[0]) == (6, 0.9)
    assert rf"unit & {mean:.3f} $\pm$ {half:.3f} & " in as_latex(every_series)


def test_an_epsilon_above_the_one_asked_for_stands_beside_its_accuracy(tmp_path: Path) -> None:
    swept = finished(sweep(EPSILONS), tmp_path / "a")
    assert "(ε = infinite)" in as_markdown(gather([swept]).series)
    (note,) = gather([swept]).notes
    assert note == "bounded: no finite epsilon, since one record moves the sum without bound."


def test_names_reach_latex_as_text() -> None:
    shown = tabular([["", "1"], [r"\input{x} & 5 % of $a_b$ #1 ~^", "0.5"]])
    assert (
        r"\textbackslash{}input\{x\} \& 5 \% of \$a\_b\$ \#1 \textasciitilde{}\textasciicircum{} & 0.5 \\"
        in shown
    )
    assert "\n\\begin{tabular}{p{0.36\\linewidth}r}\n\\toprule\n\\raggedright  & 1 \\\\\n\\midrule\n" in shown
    assert "\n\\begin{tabular}{lr}\n\\toprule\n & 1 \\\\\n" in tabular([["", "1"], ["a", "0.5"]])


EVIL = '\\input{x} & 5 % of $a_b$ #1 ~^ <|> " ε δ σ ∞ ± ≤ − – ‡ \u202f ŷ [x] é'
"""Each character that LaTeX reads as a command, and each that our texts have beside ASCII."""


def paper(folder: Path) -> Path:
    """A paper of two pages: the parts that commands write, in columns of 3.3 inches."""
    named = sweep(EPSILONS, *LISTS, study=NOISED + ARMS.replace('"unit"', json.dumps(EVIL[:40])))
    found = gather([finished(named, folder / "sweep", seeds=6)])
    told = statement_in_latex({EVIL: {"Unit": [EVIL], "Not covered": ["words " * 300]}, "b": {"Unit": ["c"]}})
    write_figure(folder / "figure.pdf", drawn(found, width=3.3))
    (folder / "paper.tex").write_text(
        "\\documentclass[twocolumn]{article}\n\\usepackage{booktabs,graphicx}\n\\usepackage[utf8]{inputenc}\n"
        "\\setlength{\\textwidth}{6.85in}\\setlength{\\columnsep}{0.25in}\\setlength{\\oddsidemargin}{-0.2in}\n"
        f"\\begin{{document}}\n{told}\\begin{{table}}[t]\n{as_latex(found.series)}\\caption{{A sweep.}}\n"
        f"\\end{{table}}\n{tabular([['a long ' * 8, *'12'], [EVIL, '3', '4']])}\n"
        "\\newpage\n\\noindent\\includegraphics{figure.pdf}\n\\end{document}\n",
        encoding="utf-8",
    )
    return folder / "paper.tex"


def test_the_parts_of_a_paper_nest(tmp_path: Path) -> None:
    bare = re.sub(r"\\\\|\\[{}]|\\[%&#_$]", "", paper(tmp_path).read_text(encoding="utf-8"))
    opened: list[str] = []
    for what, name in re.findall(r"\\(begin|end)\{(\w+)\}", bare):
        if what == "begin":
            opened.append(name)
        else:
            assert opened.pop() == name
    assert not opened
    depth = list(accumulate({"{": 1, "}": -1}.get(char, 0) for char in bare))
    assert min(depth) == depth[-1] == 0


@pytest.mark.docs
@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="there is no pdflatex here")
def test_a_paper_of_two_pages_compiles_without_a_line_beyond_its_column(tmp_path: Path) -> None:
    order = [
        "pdflatex",
        "-no-shell-escape",
        "-interaction=nonstopmode",
        "-halt-on-error",
        paper(tmp_path).name,
    ]
    done = subprocess.run(order, cwd=tmp_path, capture_output=True, text=True, errors="replace", check=False)
    assert done.returncode == 0, done.stdout[-2000:]
    assert "(2 pages" in done.stdout
    assert "Overfull" not in done.stdout


def _without_seeds(run: Path) -> None:
    table = pd.read_csv(run / "metrics.csv").drop(columns="seed")
    table.to_csv(run / "metrics.csv", index=False)


def _without_rows(run: Path) -> None:
    pd.read_csv(run / "metrics.csv").iloc[:0].to_csv(run / "metrics.csv", index=False)


@every(
    ("damage", "why"),
    [
        (_without_seeds, "no column seed"),
        (_without_rows, "no row"),
        (lambda run: (run / "summary.json").write_text("{"), "a JSON object"),
    ],
)
def test_a_run_without_seeds_is_refused(tmp_path: Path, damage: Callable[[Path], object], why: str) -> None:
    run = plain_run(tmp_path / "a", [0.5])
    damage(run)
    with pytest.raises(DataError, match=why):
        gather([run])


def test_one_seed_has_no_interval_and_says_so(tmp_path: Path) -> None:
    swept = finished(sweep(EPSILONS, study=NOISED + ONE), tmp_path / "a", seeds=1)
    with pytest.warns(UserWarning, match=r"unit: one seed, so there is no interval\. Give `seeds` .* three"):
        figure = securefl.figure(swept)
    assert not [own for own in figure.axes[0].collections if type(own).__name__.startswith("FillBetween")]
    assert "±" not in as_markdown(gather([swept]).series)


def test_without_a_finite_epsilon_there_is_no_figure(tmp_path: Path) -> None:
    run = plain_run(tmp_path / "a", [0.5, 0.6, 0.7])
    with pytest.raises(ConfigError, match=r"Expected a finite epsilon .* Name a run with noise"):
        securefl.figure(run)
    assert "no noise" in as_markdown(gather([run]).unprotected), "but there is a table"
    with pytest.raises(ConfigError, match="got none"):
        securefl.figure()


def test_cells_that_failed_are_named(tmp_path: Path) -> None:
    swept = noised(tmp_path / "a", leave=1)
    told = typed("figure", swept, "-o", tmp_path / "f.pdf")
    assert told.exit_code == 0
    assert (
        f"{swept}: 1 of 3 cells are missing, since they failed or never ran (epsilon = inf)." in told.stderr
    )
    assert "To run them: securefl sweep" in told.stderr
    with pytest.raises(ConfigError, match=r"Expected finished cells in .* got none of 3"):
        gather([noised(tmp_path / "b", leave=3)])


def test_an_arm_that_diverged_is_named(swept: Path, tmp_path: Path) -> None:
    runs = [swept, plain_run(tmp_path / "b", [0.5, math.nan], arm="lost")]
    (note,) = gather(runs).notes
    assert note == "lost, no noise: 1 of 2 runs have no final accuracy: their models diverged."


def test_a_seed_that_is_there_twice_is_refused(swept: Path, tmp_path: Path) -> None:
    again = noised(tmp_path / "b")
    for folders in ([swept, again], [swept, swept]):
        with pytest.raises(ConfigError, match=r"Expected each seed of an arm once .* too narrow"):
            gather(folders)


def test_runs_that_compare_refuses_are_pooled_by_no_table(swept: Path, tmp_path: Path) -> None:
    for number, digest in enumerate(("SHA-256 11", "SHA-256 22")):
        run = plain_run(tmp_path / str(number), [0.5, 0.6], arm=f"arm {number}")
        (run / "private").mkdir(exist_ok=True)
        (run / "private" / "records.json").write_text(json.dumps({"data": digest}))
    for make in (gather, compared):
        with pytest.raises(ConfigError, match=r"SHA-256 of data = SHA-256 11 in .* they|their accuracies"):
            make([tmp_path / "0", tmp_path / "1"])
    config = swept / "sweep.toml"
    assert gather([swept]).notes == [], config


def test_personal_accuracies_are_shown_on_demand_alone(swept: Path, tmp_path: Path) -> None:
    personal = noised(tmp_path / "a", personal=True)
    with pytest.raises(ConfigError, match=r"Expected an accuracy to show, got none\. .* --private"):
        gather([personal])
    out = tmp_path / "f.svg"
    told = typed("figure", personal, "-o", out, "--private")
    assert told.exit_code == 0, told.output
    assert "Not for publication" in out.read_text()
    assert "Not for publication" not in _svg(swept, tmp_path)


def _svg(swept: Path, folder: Path) -> str:
    typed("figure", swept, "-o", folder / "p.svg", "--private")
    typed("figure", swept, "-o", folder / "p.svg")
    return (folder / "p.svg").read_text()


def test_trials_of_a_private_choice_are_refused(tmp_path: Path) -> None:
    text = NOISED + ONE + f'[sweep]\nchoice = {{ trials = "poisson", mean = 10 }}\n[sweep.grid]\n{EPSILONS}\n'

    claim(tmp_path / "a", parse_sweep(text))
    with pytest.raises(ConfigError, match="one cell was chosen privately"):
        gather([tmp_path / "a"])


@every("out", ["f.jpg", "f", "f.pdf.exe", "study.toml"])
def test_another_ending_is_refused_before_anything_is_read(tmp_path: Path, out: str) -> None:
    told = typed("figure", tmp_path, "-o", tmp_path / out)
    assert "Expected a file that ends in .pdf, .svg, .png" in str(told.exception)
    assert not (tmp_path / out).exists()


def test_a_sweep_is_compared_by_its_cells(tmp_path: Path) -> None:
    swept, plain = noised(tmp_path / "a", leave=1), plain_run(tmp_path / "b", [0.8, 0.9])
    page = tmp_path / "c.html"
    told = typed("compare", swept, plain, "--json", "-o", page)
    assert told.exit_code == 0, told.output
    said = json.loads(told.stdout)
    assert [*said["runs"]] == ["epsilon-1", "epsilon-4", "b"]
    assert "cells are missing" in said["notes"][0]
    source = page.read_text()
    assert "band: 95 % interval" in source
    mean, half = student([0.2 + 0.01 * seed for seed in range(1, 7)])
    assert f"{mean:.3f} ± {half:.3f}" in source


def test_series_of_several_methods_keep_their_names(tmp_path: Path) -> None:
    evil = "$\\frac{1}$ | <b>"
    study = NOISED + ONE.replace('"unit"', json.dumps(evil))
    figure = securefl.figure(finished(sweep(EPSILONS, study=study), tmp_path / "a", seeds=5))
    names: Sequence[str] = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names[0] == evil, "a name is no formula"
    assert "\\|" in as_markdown(gather([tmp_path / "a"]).series)
