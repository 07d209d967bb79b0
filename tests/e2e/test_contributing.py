"""The examples of five pages of docs/how-to are installed as one package, and run."""

from __future__ import annotations

import ast
import json
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import numpy as np
import public
import pytest
from e2e.pages import ROOT, blocks
from support.command_line import securefl
from support.outside import installed
from support.private_studies import client_level
from support.tiny_study import FEDAVG, FEDPROF, run, spied, study, text, with_privacy

from securefl import Plan
from securefl.algorithm import ValueSpec
from securefl.commands.exit_codes import ExitCode
from securefl.core.keys import SecretKey
from securefl.dp import Source
from securefl.errors import BudgetExceeded, ConfigError
from securefl.mechanisms.charges import Protection
from securefl.published.table import table_named
from securefl.study.config import parse
from securefl.study.session import run_study
from securefl.study.world import build
from securefl.sums import scheme_of
from securefl.training.chunks import body_features

pytestmark = pytest.mark.docs

PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
HOW_TO = (
    "protocol.md",
    "mechanism-of-your-own.md",
    "sum-of-your-own.md",
    "data-set.md",
    "query-command-table.md",
)
SCREEN = 45
"""The most lines of an example."""
_GUIDES = [block for name in HOW_TO for block in blocks((ROOT / "docs/how-to" / name).read_text("utf-8"))]
FILES = {block.title: block.body for block in _GUIDES if block.title.startswith("my_package/")}
STUDY = text(FEDAVG, FEDPROF, seeds="[1]", rounds=1)


def points() -> dict[str, str]:
    """The pages' lines of entry points, a text for each group."""
    found = [block.body for block in _GUIDES if block.title == "pyproject.toml"]
    groups = [tomllib.loads(lines)["project"]["entry-points"] for lines in found]
    return {
        group: "\n".join(f"{name} = {value}" for name, value in lines.items())
        for one in groups
        for group, lines in one.items()
    }


@pytest.fixture(scope="module", autouse=True)
def _package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    modules = FILES | {"my_package/__init__.py": "", "my_package/digits.toml": STUDY}
    with installed(tmp_path_factory.mktemp("site"), modules, points()):
        yield


def test_the_page_leads_to_every_guide_and_each_has_an_example() -> None:
    assert len(FILES) == 10  # protocol.md has four, query-command-table.md three
    for name in HOW_TO:
        assert f"(docs/how-to/{name})" in PAGE


@pytest.mark.parametrize("path", FILES)
def test_an_example_fits_a_screen_and_imports_from_faces_alone(path: str) -> None:
    lines = FILES[path].splitlines()
    assert len(lines) < SCREEN
    assert max(map(len, lines)) <= 110
    for node in ast.walk(ast.parse(FILES[path])):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("securefl"):
            assert node.module in public.FACES
            # a face of pieces may state no names yet
            stated = getattr(import_module(node.module), "__all__", None)
            assert stated is None or {alias.name for alias in node.names} <= set(stated)


def test_lines_of_the_page_fit() -> None:
    assert max(len(line) for line in PAGE.splitlines()) <= 120


def test_the_protocol_selects_the_slowest(tmp_path: Path) -> None:
    of = study(
        '[[arm]]\nname = "Slowest"\nprotocol = "my_package.slowest:Slowest"\nfraction = 0.5\n', rounds=1
    )
    here = build(of, of.study.seeds[0])
    selected = run(of, tmp_path, here=here).records[0]["selected"]
    assert selected == sorted(here.population().seconds.argsort()[-3:])


def test_a_baseline_of_forty_lines_keeps_a_model_and_refuses_what_is_out_of_range(tmp_path: Path) -> None:
    assert len(FILES["my_package/mixed.py"].splitlines()) <= 40
    arm = '[[arm]]\nname = "Mixed"\nprotocol = "my_package.mixed:Mixed"\nfraction = 1.0\nown = {}\n'
    plain_arm = FEDAVG.replace("0.5", "1.0") + 'aggregation = "partial"\n'
    spy, finished = spied(study(arm.format(1.0), rounds=1, clients=3), tmp_path)
    record = finished.records[-1]
    assert record["personal"]
    assert len(record["figures"]["global accuracy"][1]) == 3
    plain, _ = spied(study(plain_arm, rounds=1, clients=3), tmp_path / "plain")
    assert np.array_equal(spy.states[-1].broadcast, plain.states[-1].broadcast)
    with pytest.raises(ConfigError, match=r"own in \[0, 1\], got 1.5"):
        run(study(arm.format(1.5)), tmp_path / "beyond")


def test_a_loss_of_another_kind_makes_small_features(tmp_path: Path) -> None:
    norms = []
    for protocol in ("my_package.small:Small", "my_package.slowest:Slowest"):
        arm = FEDAVG.replace('"fedavg"', f'"{protocol}"').replace("0.5", "1.0")
        spy, finished = spied(study(arm, rounds=2), tmp_path / protocol[-5:])
        problem = finished.world.problem
        x = problem.server_x[:50]
        norms.append(np.linalg.norm(body_features(problem.module(spy.states[-1].broadcast), x)))
    assert norms[0] < 0.95 * norms[1]


def test_an_update_of_another_kind_is_no_personal_model(tmp_path: Path) -> None:
    """And its `split` gets the trained model, with a bound of updates and without."""
    found = {}
    for bound in ("", "update_bound = 1000.0"):
        written = text(FEDAVG.replace('"fedavg"', '"my_package.nova:Nova"'), rounds=1)
        of = parse(written.replace("[local]", f"[local]\n{bound}"))
        spy, finished = spied(of, tmp_path / (bound or "free"))
        assert not finished.records[-1]["personal"]
        found[bound] = spy.states[-1].broadcast
    moved = np.abs(found[""] - finished.world.problem.initial).max()
    assert np.abs(np.subtract(*found.values())).max() < 1e-4 < moved


def test_the_mechanism_noises_each_value() -> None:
    spec = ValueSpec(name="own", reduction="sum", reveals="it", sensitivity={("record", "add-remove"): 1.0})
    plan = Plan(
        noise="discrete-local", noise_multiplier=2.0, adjacency="add-remove", delta=1e-5, max_rounds=1
    )
    mechanism = Protection(plan, spec).mechanism
    assert mechanism.deviation(9) == 6.0
    noise = mechanism.client_noise(10_000, Source(SecretKey(b"a secret of the test's own".rjust(32))))
    assert noise is not None
    assert float(noise.std() * spec.grid.step) == pytest.approx(2.0, rel=0.05)  # 7 deviations
    assert mechanism.learns("server") == ", with discrete noise of its own"


def test_a_study_takes_the_mechanism(tmp_path: Path) -> None:
    found, _ = run_study(
        client_level(noise='"discrete-local"', rounds=1), tmp_path, lambda arm, seed, record: None
    )
    assert found.summary[0].epsilon["server"] == pytest.approx(8.0, rel=0.01)


HIDDEN = {
    "sum": '"distrustful"',
    "dropout": "0.0",
    "corrupt": "0.0",
    "min_cohort_size": "3",
}


def test_the_sum_opens_and_refuses_a_plan_that_trusts_the_server(tmp_path: Path) -> None:
    written = text(FEDAVG + 'aggregation = "partial"\n', rounds=1)
    clear, _ = spied(parse(written), tmp_path / "clear")
    hidden, _ = spied(parse(with_privacy(written, HIDDEN)), tmp_path / "hidden")
    assert np.array_equal(clear.states[-1].broadcast, hidden.states[-1].broadcast)
    sizes = {"min_cohort_size": 4, "max_cohort_size": 4, "min_honest": 2, "max_client_weight": 0.5}
    trusting = Plan(sum="distrustful", secagg="semi-honest", corrupt=0.0, delta=1e-5, max_rounds=1, **sizes)
    scheme = scheme_of(trusting)
    assert scheme is not None
    with pytest.raises(ConfigError, match='Expected secagg = "active"'):
        scheme.check(ValueSpec(name="step", reduction="sum", reveals="a step"), 4)


def test_the_linear_query_is_the_weighted_sum_once(tmp_path: Path) -> None:
    own = import_module("my_package.weighted_means")
    clients = [(np.full((4, 2), (k / 4, -0.5)), np.zeros(4)) for k in range(3)]
    weights = np.array([0.6, 0.8])
    found = own.weighted_means(clients, weights, tmp_path / "ledger.sqlite")
    assert found == pytest.approx({k: 0.6 * k / 4 - 0.4 for k in range(3)}, abs=1e-3)
    with pytest.raises(BudgetExceeded):
        own.weighted_means(clients, weights, tmp_path / "ledger.sqlite")


def test_the_command_prints(capfd: pytest.CaptureFixture[str]) -> None:
    arguments = ("noise", "--epsilon", "1", "--delta", "1e-5", "--releases", "10")
    code, printed, _ = securefl(capfd, *arguments, "--json")
    assert code == 0
    found = json.loads(printed)["noise_multiplier"]
    assert securefl(capfd, *arguments)[1] == f"noise multiplier {found:.4f}\n"
    assert "Example:  securefl noise" in securefl(capfd, "noise", "--help")[1]


def test_the_table_is_reproduced(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert table_named("digits_by_profile").title == "Selection on digits"
    code, printed, _ = securefl(capfd, "reproduce", "digits_by_profile", "--out", tmp_path, "--workers", 1)
    assert code in (ExitCode.DONE, ExitCode.UNLEARNT)
    assert "Ours" in printed
    assert "- study.rounds = 1; published is 500." in printed


def test_a_study_takes_the_data_set(tmp_path: Path) -> None:
    of = parse(text(FEDAVG, rounds=1, clients=4).replace('source = "digits"', 'source = "rings"'))
    here = build(of, 3)
    assert (here.problem.clients, here.problem.shape, len(here.problem.server_y)) == (4, (2,), 100)
    assert len(run(of, tmp_path, here=here).records) == 1
