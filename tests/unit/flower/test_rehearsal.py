"""`securefl flower check`: what a run would refuse, found before any message is sent."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.every import every

from securefl.commands.flower import flower
from securefl.core.agreement import Identity
from securefl.core.errors import ConfigError
from securefl.deployment.roster import line_of
from securefl.flower.rehearsal import Rehearsal, rehearse

SERVER = """
import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg, FedMedian
from securefl.flower import secure_strategy

app = ServerApp()

@app.main()
def main(grid, context):
    arrays = ArrayRecord({"w": Array(np.zeros(3, np.float32))})
    strategy = FedAvg()
    strategy = secure_strategy(strategy, context)
    strategy.start(grid, arrays, num_rounds=3, train_config=ConfigRecord({"lr": 0.1}))
    raise AssertionError("a rehearsal goes no further")
"""
CLIENT = """
import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from securefl.flower import secure

app = ClientApp()

@app.train()
def train(message, context):
    assert message.content["config"]["lr"] == 0.1
    assert context.node_config["partition-id"] == 0
    arrays = dict(message.content["arrays"])
    metrics = {"num-examples": 20, "loss": 1.5}
    content = {"arrays": ArrayRecord(arrays), "metrics": MetricRecord(metrics)}
    return Message(RecordDict(content), reply_to=message)

@app.evaluate()
def evaluate(message, context):
    metrics = {"num-examples": 20, "accuracy": 0.5}
    return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)

app = secure(app)
"""
TERMS = """
terms = "without-noise"
metrics = ["loss"]
evaluation = ["accuracy"]
[plan]
weights = { update = "counts", evaluation = "counts" }
min_num_examples = 10
max_num_examples = 30
max_client_weight = 0.8
"""
_numbers = count()
Change = Callable[[dict[str, str]], None]


def made(folder: Path, change: Change = lambda files: None) -> Path:
    """A Flower app of its own package, since Python keeps modules that it has loaded."""
    name = f"rehearsed_{next(_numbers)}"
    files = {
        f"{name}/__init__.py": "",
        f"{name}/server.py": SERVER,
        f"{name}/client.py": CLIENT,
        "securefl.toml": TERMS,
        "pyproject.toml": (
            f'[tool.flwr.app.components]\nserverapp = "{name}.server:app"\nclientapp = "{name}.client:app"\n'
            "[tool.flwr.app.config]\nrounds = 3\n"
        ),
    }
    short = {path.removeprefix(f"{name}/"): path for path in files}
    named = {own: files[path] for own, path in short.items()}
    change(named)
    (folder / name).mkdir()
    for own, text in named.items():
        (folder / short.get(own, f"{name}/{own}")).write_text(text)
    return folder


def said(found: Rehearsal) -> dict[str, list[str]]:
    whole: dict[str, list[str]] = {}
    for one in found.refused:
        whole.setdefault(one.where, []).append(one.what)
    return whole


def swap(file: str, old: str, new: str) -> Change:
    def change(files: dict[str, str]) -> None:
        assert old in files[file]
        files[file] = files[file].replace(old, new)

    return change


def test_an_app_that_a_run_would_serve_has_no_findings(tmp_path: Path) -> None:
    found = rehearse(made(tmp_path))
    assert found.refused == []
    kept, noise = found.notes
    assert (
        noise == "No noise: every epsilon is infinite, and differences of rounds may reveal single updates."
    )
    # What nobody can see: the app may keep state.
    assert kept.startswith("Not held against a server that lies")
    assert "update and evaluation" in kept


MODEL = "Array(np.zeros(3, np.float32))}"
REFUSED: dict[str, tuple[Change, str, str]] = {
    "no terms": (lambda files: files.pop("securefl.toml"), "terms", "or a file securefl.toml beside the app"),
    "a wrong key": (swap("securefl.toml", "metrics =", "metric ="), "terms", "did you mean `metrics`"),
    "no wrap of the server": (
        swap("server.py", "    strategy = secure_strategy(strategy, context)\n", ""),
        "server",
        "Expected `strategy = secure_strategy(strategy, context)`",
    ),
    "no wrap of the client": (
        swap("client.py", "app = secure(app)\n", ""),
        "client",
        "Expected `app = secure(app)`",
    ),
    "another strategy": (
        swap("server.py", "strategy = FedAvg()", "strategy = FedMedian()"),
        "server",
        "got FedMedian",
    ),
    "complex numbers": (swap("server.py", "np.float32)", "np.complex64)"), "model", "'w' of complex64"),
    "bytes in the configuration": (
        swap("server.py", '{"lr": 0.1}', '{"lr": 0.1, "code": b"x"}'),
        "model",
        "'code' of another type",
    ),
    "too few nodes": (
        swap("server.py", "FedAvg()", "FedAvg(min_available_nodes=11)"),
        "cohort",
        "Expected 11 nodes or more",
    ),
    "small cohorts": (
        swap("server.py", "FedAvg()", "FedAvg(fraction_train=0.5)"),
        "cohort",
        "10 to 1000 clients in a sum of 'update', as the plan says, got 5 of 10 nodes",
    ),
    "a sum that never opens": (
        swap(
            "securefl.toml",
            "max_client_weight = 0.8",
            "max_client_weight = 0.99\ndropout = 0.5\ncorrupt = 0.0",
        ),
        "cohort",
        "allow fewer drop-outs",
    ),
    "too many rounds": (
        swap("securefl.toml", "[plan]", "[plan]\nmax_rounds = 2"),
        "rounds",
        "at most 2 rounds (max_rounds), got num_rounds=3",
    ),
    "an error of its own": (
        swap("server.py", "strategy = FedAvg()", "open('/none')"),
        "server",
        "FileNotFoundError",
    ),
    "a run config that is no table": (
        swap("pyproject.toml", "rounds = 3\n", 'rounds = 3\nsecurefl = "noised"\n'),
        "terms",
        "securefl = { terms = \"noised\" }, got securefl = 'noised'",
    ),
    "a server's folder that is not there": (
        swap("pyproject.toml", "rounds = 3\n", 'rounds = 3\nsecurefl = { server = "/nowhere" }\n'),
        "server",
        "got no /nowhere/roster.jsonl",
    ),
    "an exit of its server": (
        swap("server.py", "strategy = FedAvg()", "raise SystemExit(0)"),
        "server",
        "SystemExit: 0",
    ),
    "an exit of its client": (
        swap("client.py", "arrays = dict(", "raise SystemExit(0)\n    arrays = dict("),
        "client",
        "SystemExit: 0",
    ),
    "a handler of everything": (
        swap(
            "server.py",
            "    strategy.start(grid, arrays, num_rounds=3",
            "    from contextlib import suppress\n    with suppress(BaseException):\n"
            "        strategy.start(grid, arrays, num_rounds=3",
        ),
        "server",
        "own error before it started: AssertionError",
    ),
    "an endless call": (
        swap("server.py", "strategy = FedAvg()", "f = lambda: f()\n    f()"),
        "server",
        "RecursionError",
    ),
    "no arrays": (swap("server.py", "start(grid, arrays", "start(grid, None"), "server", "got NoneType"),
    "a dictionary of arrays": (
        swap("server.py", "start(grid, arrays", "start(grid, dict(arrays)"),
        "server",
        "an ArrayRecord of initial arrays, got dict",
    ),
    "arrays that are none": (
        swap("server.py", MODEL, 'Array("float32", (3,), "numpy.ndarray", b"junk")}'),
        "model",
        "initial arrays that NumPy reads",
    ),
    "a pickle among the arrays": (
        swap("server.py", MODEL, 'Array("float32", (3,), "numpy.ndarray", __import__("pickle").dumps([1]))}'),
        "model",
        "initial arrays that NumPy reads",
    ),
    "no rounds": (swap("server.py", "num_rounds=3", "num_rounds=0"), "server", "from 1, got 0"),
    "half a round": (swap("server.py", "num_rounds=3", "num_rounds=2.5"), "server", "from 1, got 2.5"),
    "a dictionary for a configuration": (
        swap("server.py", 'ConfigRecord({"lr": 0.1})', '{"lr": 0.1}'),
        "server",
        "train_config as a ConfigRecord, got dict",
    ),
    "a fraction above 1": (
        swap("server.py", "FedAvg()", "FedAvg(fraction_train=5.0)"),
        "cohort",
        "fraction_train from 0 to 1, got 5.0",
    ),
    "a fraction that is no number": (
        swap("server.py", "FedAvg()", 'FedAvg(fraction_train=float("nan"))'),
        "cohort",
        "fraction_train from 0 to 1, got nan",
    ),
    "the key holder among ten nodes": (
        swap("securefl.toml", "[plan]", '[plan]\nsum = "two-server"'),
        "cohort",
        "10 to 1000 clients in a sum of 'update', as the plan says, got 9 of 9 nodes",
    ),
    "no reply": (
        swap("client.py", "    return Message(RecordDict(content), reply_to=message)", "    return None"),
        "client",
        "of the app, got NoneType",
    ),
    "an error for a reply": (
        swap(
            "client.py",
            "    return Message(RecordDict(content), reply_to=message)",
            '    from flwr.app import Error\n    return Message(Error(1, "x"), reply_to=message)',
        ),
        "client",
        "of the app, got an error",
    ),
    "a buffer that its client drops": (
        swap(
            "client.py",
            'arrays = dict(message.content["arrays"])',
            'arrays = dict(message.content["arrays"])\n    arrays.pop("w")',
        ),
        "client",
        "as they were sent, got {}",
    ),
    "no start": (
        swap("server.py", "    strategy.start(", "    return\n    strategy.start("),
        "server",
        "its end without one",
    ),
    "a failing client": (
        swap("client.py", "arrays = dict(", "raise ValueError('no data')\n    arrays = dict("),
        "client",
        "own error in train: ValueError: no data",
    ),
    "a fractional weight": (
        swap("client.py", '"num-examples": 20, "loss"', '"num-examples": 0.5, "loss"'),
        "client",
        "weight_step = 0.01",
    ),
    "no weight": (
        swap("client.py", '"num-examples": 20, "loss"', '"loss"'),
        "client",
        "no 'num-examples' in its MetricRecord",
    ),
    "a metric that is missing": (
        swap("client.py", '"loss": 1.5', '"other": 1.5'),
        "client",
        "train: no 'loss' in its MetricRecord",
    ),
    "a list for a metric": (
        swap("client.py", '"loss": 1.5', '"loss": [1.5]'),
        "client",
        "'loss' of the app, got a list",
    ),
    "not a number": (swap("client.py", '"loss": 1.5', '"loss": float("nan")'), "client", "finite values"),
    "beyond the grid": (
        swap("client.py", '"loss": 1.5', '"loss": 1e3'),
        "client",
        "the metric 'loss' times num-examples / 30 within +-64",
    ),
    "another layout": (
        swap("client.py", "ArrayRecord(arrays)", 'ArrayRecord({"v": arrays["w"]})'),
        "client",
        "as they were sent",
    ),
    "two records": (
        swap("client.py", 'content = {"arrays"', 'content = {"more": ArrayRecord(arrays), "arrays"'),
        "client",
        "one ArrayRecord of the app, got 2",
    ),
}


@every(("change", "where", "what"), REFUSED.values())
def test_what_a_run_would_refuse_is_said_with_its_place(
    change: Change, where: str, what: str, tmp_path: Path
) -> None:
    def changed(files: dict[str, str]) -> None:
        files.setdefault("securefl.toml", TERMS)
        change(files)

    found = said(rehearse(made(tmp_path, changed)))
    assert set(found) == {where}, found
    assert any(what in one for one in found[where]), found


NOTED: dict[str, tuple[Change, str]] = {
    "counters": (
        swap("server.py", MODEL, 'Array(np.zeros(3, np.float32)), "n": Array(np.array(0))}'),
        "Integers and booleans stay local: n.",
    ),
    "float64": (swap("server.py", "np.float32)", "np.float64)"), "float64 travel as float32"),
    "a metric that is not declared": (
        swap("client.py", '"loss": 1.5', '"loss": 1.5, "secret": 7.0'),
        "Metrics that are not declared stay on the client (train): secret.",
    ),
    "equal weights": (
        swap("securefl.toml", 'update = "counts", ', ""),
        "All clients weigh the same (train): num-examples is not read.",
    ),
}


TORCH_SERVER = """
import torch
from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from securefl.flower import secure_strategy
from .net import made, whole

app = ServerApp()

@app.main()
def main(grid, context):
    strategy = secure_strategy(FedAvg(), context)
    strategy.start(grid, ArrayRecord(SENT(made())), num_rounds=3)
"""
TORCH_CLIENT = """
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from securefl.flower import secure
from .net import made, whole

app = ClientApp()

@app.train()
def train(message, context):
    model = made()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict(), strict=False)
    free = [own for own in model.parameters() if own.requires_grad]
    model(torch.ones(2, 3)).square().sum().backward()
    torch.optim.SGD(free, lr=0.1).step()
    content = {
        "arrays": ArrayRecord(SENT(model)),
        "metrics": MetricRecord({"num-examples": 20, "loss": 1.5}),
    }
    return Message(RecordDict(content), reply_to=message)

@app.evaluate()
def evaluate(message, context):
    metrics = {"num-examples": 20, "accuracy": 0.5}
    return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)

app = secure(app)
"""
NET = """
import torch
from torch import nn
from securefl.training import trained_state

def made():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4).requires_grad_(False), nn.Linear(4, 2))

def whole(model):
    return model.state_dict()
"""


def on_torch(sent: str) -> Change:
    def change(files: dict[str, str]) -> None:
        imports = "from .net import made, whole", f"from .net import made, whole, {sent}"
        for name, text in (("server.py", TORCH_SERVER), ("client.py", TORCH_CLIENT)):
            files[name] = text.replace("SENT(", f"{sent}(").replace(*imports)
        files["net.py"] = NET

    return change


@every(("sent", "told"), [("whole", ["0.weight", "0.bias"]), ("trained_state", [])])
def test_frozen_arrays_are_noted_and_not_sent_with_the_remedy(
    sent: str, told: list[str], tmp_path: Path
) -> None:
    found = rehearse(made(tmp_path, on_torch(sent)))
    assert found.refused == []
    notes = [one for one in found.notes if "trained_state" in one]
    assert len(notes) == bool(told)
    assert all(f"not {', '.join(told)}, which" in one for one in notes)


@every(
    ("strategy", "terms", "kept", "refused"),
    [
        ("FedAvg()", "", False, False),
        ("FedAdam()", "", False, True),
        ("FedAdam()", "", True, False),
        ("FedAvg()", "update_bound = 0.5", False, True),
        ("FedAvg()", "update_bound = 0.5", True, False),
    ],
)
def test_running_statistics_are_refused_where_they_would_be_weights(
    strategy: str, terms: str, kept: bool, refused: bool, tmp_path: Path
) -> None:
    def change(files: dict[str, str]) -> None:
        on_torch("whole")(files)
        norm = "nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))"
        net = files["net.py"].replace(
            "nn.Sequential(nn.Linear(3, 4).requires_grad_(False), nn.Linear(4, 2))", norm
        )
        net = net.replace("trained_state", "local_statistics, trained_state")
        files["net.py"] = net.replace(norm, f"local_statistics({norm})") if kept else net
        name = strategy.partition("(")[0]
        files["server.py"] = files["server.py"].replace("FedAvg()", strategy).replace("FedAvg", name)
        if terms:
            files["securefl.toml"] = files["securefl.toml"].replace('metrics = ["loss"]', terms)
        if terms:
            files["client.py"] = files["client.py"].replace(', "loss": 1.5', "")

    found = said(rehearse(made(tmp_path, change)))
    assert set(found) == ({"model"} if refused else set())
    assert all("local_statistics(model)" in one for one in found.get("model", []))


@every(("change", "what"), NOTED.values())
def test_what_differs_from_plain_flower_is_noted(change: Change, what: str, tmp_path: Path) -> None:
    found = rehearse(made(tmp_path, change))
    assert found.refused == []
    assert any(one.startswith(what) or what in one for one in found.notes), found.notes


FROZEN: dict[str, Change] = {
    "arrays that nobody may write": swap(
        "client.py",
        'arrays = dict(message.content["arrays"])',
        'own = message.content["arrays"]["w"].numpy()\n    own.setflags(write=False)\n'
        '    arrays = {"w": Array(own)}',
    ),
    "buffers that no step moves": swap(
        "server.py", MODEL, 'Array(np.zeros(3, np.float32)), "bn.running_var": Array(np.ones(3, np.float32))}'
    ),
    "a number alone": swap("server.py", MODEL, "Array(np.array(0.5, np.float32))}"),
    "an array of nothing": swap(
        "server.py", MODEL, 'Array(np.zeros(3, np.float32)), "e": Array(np.zeros((0, 4), np.float32))}'
    ),
    "no training at all": swap("server.py", "FedAvg()", "FedAvg(fraction_train=0.0)"),
}


@every("change", FROZEN.values())
def test_what_a_run_would_serve_is_not_refused(change: Change, tmp_path: Path) -> None:
    assert said(rehearse(made(tmp_path, change))) == {}


@every(
    "text",
    ["tool = 3", "[tool]\nflwr = 3", "[tool.flwr]\napp = [1]", '[tool.flwr.app]\ncomponents = "x"', "[tool"],
)
def test_a_project_file_of_another_form_is_refused_with_its_path(text: str, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(text)
    with pytest.raises(ConfigError, match=r"pyproject\.toml: Expected"):
        rehearse(tmp_path)


def test_an_app_that_exits_as_it_is_loaded_is_no_app(tmp_path: Path) -> None:
    change = swap("client.py", "import numpy as np\n", "import numpy as np\nraise SystemExit(0)\n")
    with pytest.raises(ConfigError, match="SystemExit: 0"):
        rehearse(made(tmp_path, change))


def test_what_an_app_prints_is_not_in_the_json(tmp_path: Path) -> None:
    change = swap("server.py", "strategy = FedAvg()", 'print("hello")\n    strategy = FedAvg()')
    done = CliRunner().invoke(flower, ["check", str(made(tmp_path, change)), "--json"])
    assert json.loads(done.stdout)["refused"] == []
    assert done.stderr == "hello\n"


def noised(more: str = "") -> Change:
    def change(files: dict[str, str]) -> None:
        files["securefl.toml"] = f'terms = "noised"\nevaluation = ["accuracy"]\n[plan]\n{more}'

    return change


def test_noise_says_what_the_rounds_cost(tmp_path: Path) -> None:
    found = rehearse(made(tmp_path, noised()))
    assert found.refused == []
    assert found.notes[0].startswith("A client in all 3 rounds spends epsilon 1.")
    assert not [one for one in found.notes if "state" in one]


def test_rounds_beyond_the_budget_are_said(tmp_path: Path) -> None:
    found = said(rehearse(made(tmp_path, noised("budget = 0.5\n"))))
    assert "within the budget of 0.5" in found["budget"][0]


def test_an_app_is_checked_without_training_where_its_records_are_elsewhere(tmp_path: Path) -> None:
    change = swap("client.py", "arrays = dict(", "raise ValueError('no data')\n    arrays = dict(")
    assert rehearse(made(tmp_path, change), training=False).refused == []


def test_more_nodes_make_larger_cohorts(tmp_path: Path) -> None:
    change = swap("server.py", "FedAvg()", "FedAvg(fraction_train=0.5)")
    assert rehearse(made(tmp_path, change), nodes=20).refused == []


def test_the_clients_of_the_servers_roster_are_the_nodes(tmp_path: Path) -> None:
    names = [*(f"client-{k:04}" for k in range(12)), "server"]
    lines = [line_of(Identity.generate(name).member()) for name in names]
    (tmp_path / "server").mkdir()
    (tmp_path / "server" / "roster.jsonl").write_text("\n".join(lines))

    def change(files: dict[str, str]) -> None:
        files["pyproject.toml"] += f'securefl = {{ server = "{tmp_path / "server"}" }}\n'
        swap("server.py", "FedAvg()", "FedAvg(fraction_train=0.5)")(files)

    (tmp_path / "app").mkdir()
    found = said(rehearse(made(tmp_path / "app", change)))
    assert "got 6 of 12 nodes" in found["cohort"][0]


@every(
    ("text", "what"),
    [
        ("[project]\n", r"serverapp = \"module:app\", got None"),
        ('[tool.flwr.app.components]\nserverapp = "a:b"\nclientapp = 3\n', r"clientapp = .* got 3"),
        ('[tool.flwr.app.components]\nserverapp = "no.such:b"\nclientapp = "a:b"\n', "ModuleNotFoundError"),
    ],
)
def test_a_folder_without_an_app_is_refused(text: str, what: str, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(text)
    with pytest.raises(ConfigError, match=what):
        rehearse(tmp_path)


def test_the_command_says_what_it_runs_and_exits_with_3_if_anything_is_refused(tmp_path: Path) -> None:
    done = CliRunner().invoke(flower, ["check", str(made(tmp_path))])
    assert done.exit_code == 0
    assert "Running the code of" in done.stderr
    assert done.stdout.splitlines()[-1] == "Nothing would be refused."
    other = tmp_path / "other"
    other.mkdir()
    made(other, swap("server.py", "FedAvg()", "FedMedian()"))
    done = CliRunner().invoke(flower, ["check", str(other), "--json"])
    assert done.exit_code == 3
    assert done.stderr == ""
    assert json.loads(done.stdout)["refused"][0]["where"] == "server"


def test_an_app_that_relays_a_study_is_told_from_one_without_terms() -> None:
    found = rehearse(Path(__file__).parents[3] / "examples" / "flower")
    assert found.refused == []
    assert "securefl plan" in found.notes[0]
