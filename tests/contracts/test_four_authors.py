"""Four programs from outside the package: a protocol, a mechanism, a sum scheme, and a training loop.

Each is installed as a distribution of its own, imports from the public faces alone, and runs. The tests count
the lines that it imports with.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import public
import pytest
from scipy import stats
from support.every import every
from support.hidden_plans import hidden
from support.hidden_studies import counts
from support.outside import installed
from support.tiny_study import spied, text, with_privacy

from securefl import Plan, SecureAggregator
from securefl.accounting import compose
from securefl.algorithm import ClientFunction, CohortQuery, Sum, Value, ValueSpec
from securefl.core.keys import SecretKey
from securefl.dp import Source
from securefl.engine.network import Network
from securefl.errors import ConfigError
from securefl.mechanisms.charges import Protection
from securefl.study import run_report
from securefl.study.config import parse
from securefl.study.session import run_study

PROTOCOL = """
from dataclasses import dataclass
import numpy as np
from securefl.algorithm import CohortQuery, Evaluation, RoundResult, State, Sum, Value, ValueSpec
LABELS = ValueSpec(name="labels", reduction="sum", reveals="label counts", on_model=False, cohort=4,
                   sensitivity={("record", "add-remove"): 1.0})
class Counts:
    spec = LABELS
    def compute(self, client):
        return Value.summed(np.eye(10)[client.y], LABELS.grid, 1.0)
class Majority:
    contributions = (Counts(),)
    def __init__(self, problem): self.problem = problem
    def start(self): return State(np.zeros(0, np.float32))
    def round(self, state, population, number, rng):
        everyone, model = population.everyone(), state.broadcast
        answers = yield CohortQuery(cohort=everyone, broadcast=model, sums=(Sum(LABELS, 10),))
        state = State(answers.totals["labels"].value.astype(np.float32))
        turns = np.full(population.clients, float(number))
        return RoundResult(state=state, drawn=dict.fromkeys(everyone, 1), survivors=answers.survivors,
                           figures={"turn": turns})
    def evaluate(self, state, devices):
        right = self.problem.server_y == np.argmax(state.broadcast)
        return Evaluation(accuracy=float(right.mean()), loss=0.0)
@dataclass(frozen=True)
class Options:
    def build(self, problem): return Majority(problem)
"""
MECHANISM = """
from dp_accounting import NoOpDpEvent
from securefl.dp import discrete, discrete_event
from securefl.mechanisms import Charge, Mechanism
class DiscreteLocal(Mechanism):
    noised = True
    def charge(self):
        event = discrete_event(self.sigma, self.sensitivity_on_grid)
        return Charge(server=event, key_holder=NoOpDpEvent(), others=event)
    def client_noise(self, size, source): return discrete(size, self.sigma, source)
    def learns(self, party): return ", with discrete noise of its own" if party == "server" else ""
"""
SUM = """
from securefl.errors import ConfigError
from securefl.sums import Directory, PartyKeys
from .machines import Client, Server
class ZeroSum:
    key_holder_learns = ""
    def __init__(self, plan): self.plan = plan
    def check(self, spec, cohort):
        if self.plan.dropout:
            raise ConfigError("Expected dropout = 0: zero-sum masks cancel only if all clients answer.")
    def clients(self, directory: Directory): return Client.side(self.plan, directory)
    def server(self, own: PartyKeys): return Server.side(self.plan, own)
    def key_holder(self, own: PartyKeys): return None
"""
MACHINES = '''
"""Client k adds the mask k and subtracts the mask k + 1, around the cohort. A toy: all share one secret."""
import hashlib
from dataclasses import dataclass, replace
from functools import partial
import numpy as np
from securefl.errors import RemoteProtocolError
from securefl.sums import (
    Agreement, Attempt, ComputeAndConceal, Directory, Expects, Identity, Limit, Machine, Need,
    Opened, Outgoing, PartyKeys, Release, Step, Unopened, entering, message)

def agreement(plan, directory, attempt: Attempt) -> Agreement:
    vectors = tuple(replace(vector, bits=64) for vector in attempt.vectors())
    return Agreement(header=attempt.header, roster=directory.roster(attempt.cohort), vectors=vectors,
                     plan=plan.digest(), task=attempt.task)

@message("outside-zero-sum-input", version=1, sender="client")
@dataclass(frozen=True, kw_only=True)
class Input:
    releases: tuple[Release, ...]

@dataclass(frozen=True)
class Client:
    identity: Identity
    agreement: Agreement
    @staticmethod
    def side(plan, directory: Directory): return Clients(plan, directory)
    def begin(self):
        cohort = len(self.agreement.roster.members)
        return Step("entering", need=Need(entering(self.identity.name, self.agreement, cohort)))
    def expects(self, state): return Expects(self.agreement.header, {})
    def receive(self, state, sender, said):
        raise RemoteProtocolError("Expected no message to a client.", sender=sender, phase=state)
    def provide(self, state, answer):
        if answer is None:
            return Step("done", result="abstained")
        if state == "entering":
            vectors = enumerate(self.agreement.vectors)
            conceal = {vector.name: partial(self.masked, place) for place, vector in vectors}
            return Step("hiding", need=Need(ComputeAndConceal(client=self.identity.name, conceal=conceal,
                                                              header=self.agreement.header)))
        return Step("done", out=(Outgoing(("server",), Input(releases=answer)),), result="answered")
    def deadline(self, state): return Step(state)
    def masked(self, vector, integers):
        own, everybody = self.agreement.roster.numbers[self.identity.name], len(self.agreement.roster.members)
        return (integers + self.mask(own, vector, len(integers))
                - self.mask((own + 1) % everybody, vector, len(integers)))
    def mask(self, member, vector, length):
        seed = b"known to every client" + self.agreement.context + bytes([member, vector])
        return np.frombuffer(hashlib.shake_256(seed).digest(8 * length), np.int64)

@dataclass(frozen=True)
class Clients:
    plan: object
    directory: Directory
    def machines(self, attempt, identities, key) -> dict[str, Machine]:
        agreed = agreement(self.plan, self.directory, attempt)
        return {one.name: Client(one, agreed) for one in identities}

@dataclass(frozen=True)
class Server:
    agreement: Agreement
    @staticmethod
    def side(plan, own: PartyKeys): return Servers(plan, own.directory)
    def begin(self): return Step({})
    def expects(self, state):
        most = sum(8 * vector.length for vector in self.agreement.vectors) + 4096
        return Expects(self.agreement.header, {Input: Limit(most, len(self.agreement.vectors))})
    def receive(self, state, sender, said):
        sizes = [(one.name, "masked", (one.length,)) for one in self.agreement.vectors]
        if [(one.name, one.form, one.numbers.shape) for one in said.releases] != sizes:
            raise RemoteProtocolError("Expected masked vectors.", sender=sender, phase="adding")
        state = {sender: said.releases, **state}
        if self.agreement.roster.numbers.keys() - state.keys():
            return Step(state)
        columns = zip(*state.values(), strict=True)
        totals = {column[0].name: np.sum([one.numbers for one in column], axis=0) for column in columns}
        return Step(state, result=Opened(totals=totals, survivors=tuple(self.agreement.roster.numbers)))
    def provide(self, state, answer): return Step(state)
    def deadline(self, state):
        return Step(state, result=Unopened(reason="No sum: the masks of the silent clients remain."))

@dataclass(frozen=True)
class Servers:
    plan: object
    directory: Directory
    def check(self, attempt): agreement(self.plan, self.directory, attempt)
    def machine(self, attempt, key) -> Machine: return Server(agreement(self.plan, self.directory, attempt))
    def outcome(self, machine, result): return result
'''
LOOP = """
import numpy as np
import securefl
from securefl.algorithm import ClientFunction, CohortQuery, Sum, Value, ValueSpec
clients = [(np.random.default_rng(k).normal(2, 1, (300, 2)), np.zeros(300)) for k in range(5)]
STEP = ValueSpec(name="step", reduction="sum", reveals="a step", cohort=5,
                 sensitivity={("record", "add-remove"): 1})
def step(client):
    return Value.summed(client.x - client.broadcast, STEP.grid, 1.0)
own = ClientFunction(STEP, step)
plan = securefl.Plan(sum="masked", noise="distributed", noise_multiplier=6.305, adjacency="add-remove",
                     delta=1e-5, budget=2.0, max_rounds=99, dropout=0.2, corrupt=0.2,
                     min_cohort_size=5, max_cohort_size=5, min_honest=3, max_client_weight=0.5)
w = np.zeros(2, np.float32)
with securefl.SecureAggregator(plan, [own], clients, ledger="ledger.sqlite") as aggregator:
    for _ in range(10):
        query = CohortQuery(cohort=(0, 1, 2, 3, 4), broadcast=w, sums=(Sum(STEP, 2),))
        total = aggregator.query(query).totals["step"]
        w = w + np.float32(total.value / 1500)
    spent = aggregator.ledger.worst("server")
"""
MODULES = {
    "majority.py": PROTOCOL,
    "discrete_local.py": MECHANISM,
    "zero_sum/__init__.py": SUM,
    "zero_sum/machines.py": MACHINES,
}
POINTS = {
    "securefl.protocols": "majority = majority:Options",
    "securefl.mechanisms": "discrete-local = discrete_local:DiscreteLocal",
    "securefl.sums": "outside-zero-sum = zero_sum:ZeroSum",
}


def mute(aggregator: SecureAggregator, name: str) -> None:
    """From now on the input of this client to a sum arrives nowhere."""
    query = aggregator._engine.query
    lost = Network(tamper=lambda sender, to, data: b"" if sender == name and b"input" in data else data)
    aggregator._engine.query = lambda asked, at: query(asked, at, lost)  # type: ignore[method-assign]


@pytest.fixture(scope="module", autouse=True)
def _distribution(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with installed(tmp_path_factory.mktemp("outside"), MODULES, POINTS):
        yield


# What each imports -----------------------------------------------------------------------------------


def imports(program: str) -> list[ast.Import | ast.ImportFrom]:
    found = ast.parse(program).body
    return [node for node in found if isinstance(node, ast.Import | ast.ImportFrom)]


def of_ours(node: ast.Import | ast.ImportFrom) -> list[tuple[str, str]]:
    """The (module, name) pairs of this package that a line imports."""
    if isinstance(node, ast.Import):
        pairs = [(alias.name, "") for alias in node.names]
    else:
        pairs = [] if node.level else [(node.module or "", alias.name) for alias in node.names]
    return [(module, name) for module, name in pairs if module.split(".")[0] == "securefl"]


@every(
    ("program", "lines", "ours"),
    [(PROTOCOL, 3, 1), (MECHANISM, 3, 2), (SUM, 3, 2), (MACHINES, 6, 2), (LOOP, 3, 2)],
)
def test_an_author_imports_few_lines_from_faces_alone(program: str, lines: int, ours: int) -> None:
    found = imports(program)
    assert len(found) == lines
    assert sum(bool(of_ours(node)) for node in found) == ours
    for module, name in (pair for node in found for pair in of_ours(node)):
        assert module in public.FACES, module
        assert not name or name in public.names(module), f"{module}.{name}"


# The protocol ----------------------------------------------------------------------------------------


ARM = '[[arm]]\nname = "Majority"\nprotocol = "majority"\n'
NOISED = {"adjacency": '"add-remove"', "non_private": "[]", "epsilon": "4.0"}
MASKED = {"sum": '"masked"', "dropout": "0.2", "corrupt": "0.0"}
PRIVACY: dict[str, dict[str, str]] = {
    "clear": {},
    "masked": MASKED,
    "ckks": MASKED | {"sum": '"ckks"'},
    "two-server": MASKED | {"sum": '"two-server"'},
    "masked, with noise": MASKED | NOISED | {"noise": '"distributed"'},
    "by the outside mechanism": NOISED | {"noise": '"discrete-local"'},
    "by the outside sum": {"sum": '"outside-zero-sum"', "dropout": "0.0", "corrupt": "0.0"},
}


@every("how", PRIVACY)
def test_the_protocol_runs_in_a_study(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = how == "masked, with noise"
    if not drawn:  # a page takes ten times as long as its run
        monkeypatch.setattr(run_report, "write", lambda *args, **named: tmp_path)
    written = with_privacy(text(ARM, non_private='["labels"]', clients=4), PRIVACY[how])
    found, page = run_study(parse(written), tmp_path, lambda arm, seed, record: None)
    assert page.is_file() == drawn
    assert found.metrics["answered"].tolist() == [4, 4]
    assert found.participation["selected"].tolist() == [2] * 4
    if drawn:
        figures = pd.read_csv(tmp_path / "private" / "figures.csv", comment="#")
        assert set(figures["figure"]) == {"turn"}
        assert figures["value"].tolist() == [1.0] * 4 + [2.0] * 4
    assert 0.05 < found.summary[0].final_accuracy < 0.25
    assert np.isfinite(found.summary[0].epsilon["server"]) == ("noise" in PRIVACY[how])


# The mechanism ---------------------------------------------------------------------------------------


def test_the_mechanism_draws_the_noise_that_it_charges() -> None:
    """With false alarms of 1e-9 each, under randomness that is injected."""
    spec = ValueSpec(name="own", reduction="sum", reveals="it", sensitivity={("record", "add-remove"): 1.0})
    plan = Plan(
        noise="discrete-local", noise_multiplier=2.0, adjacency="add-remove", delta=1e-5, max_rounds=1
    )
    mechanism = Protection(plan, spec).mechanism
    noise = mechanism.client_noise(40_000, Source(SecretKey(b"a secret of the test's own".rjust(32))))
    assert noise is not None
    sigma = 2.0 / spec.grid.step
    low, high = stats.chi2.ppf([5e-10, 1 - 5e-10], len(noise))
    assert low < np.sum((noise / sigma) ** 2) < high
    assert stats.kstest(noise / sigma, "norm").pvalue > 1e-9
    charge = Protection(plan, spec).charge().by_party()
    gaussian = Plan(noise="local", noise_multiplier=2.0, adjacency="add-remove", delta=1e-5, max_rounds=1)
    known = Protection(gaussian, spec).charge().by_party()
    for party in charge:
        ours, theirs = (compose({each[party]: 1}, 1e-5) for each in (charge, known))
        assert ours == pytest.approx(theirs, rel=1e-3)
    assert mechanism.deviation(4) == 4.0  # the noises of four clients add up
    assert mechanism.total_noise("server", 3, Source()) is None


# The sum ---------------------------------------------------------------------------------------------


FEDAVG = '[[arm]]\nname = "x"\nprotocol = "fedavg"\nfraction = 1.0\n'
HIDDEN = {
    "sum": '"outside-zero-sum"',
    "dropout": "0.0",
    "corrupt": "0.0",
    "max_client_weight": "0.51",
    **counts(4),
}


def test_the_sum_gives_the_same_models_as_in_the_clear(tmp_path: Path) -> None:
    written = text(FEDAVG, clients=4)
    clear, _ = spied(parse(written), tmp_path / "clear")
    summed, finished = spied(parse(with_privacy(written, HIDDEN)), tmp_path / "hidden")
    for a, b in zip(clear.states, summed.states, strict=True):
        assert np.array_equal(a.broadcast, b.broadcast)
    assert [record["answered"] for record in finished.records] == [list(range(4))] * 2
    assert not any(record["rejected_from"] or record["abstained"] for record in finished.records)


def test_the_sum_refuses_a_plan_in_which_clients_fall_silent(tmp_path: Path) -> None:
    written = with_privacy(text(FEDAVG, clients=4), HIDDEN | {"dropout": "0.3"})
    with pytest.raises(ConfigError, match="Expected dropout = 0"):
        spied(parse(written), tmp_path)


def test_a_silent_client_costs_the_sum(tmp_path: Path) -> None:
    spec = ValueSpec(name="own", reduction="sum", reveals="it")
    plan = hidden(Plan(delta=1e-5, max_rounds=2, non_private=("own",)), 4, sum="outside-zero-sum")
    records = [(np.ones((k, 1)), np.zeros(k)) for k in (1, 2, 3, 0)]
    given = ClientFunction(spec, lambda context: Value(clear=np.full(3, float(len(context.x)))))
    nothing = np.zeros(0, np.float32)
    with SecureAggregator(plan, [given], records, ledger=tmp_path / "ledger.sqlite") as aggregator:
        answers = aggregator.query(CohortQuery(cohort=(0, 1, 2), broadcast=nothing, sums=(Sum(spec, 3),)))
        assert answers.survivors == (0, 1, 2)
        assert answers.totals["own"].value.tolist() == [6.0] * 3
        mute(aggregator, "client-0003")
        missing = aggregator.query(CohortQuery(cohort=(0, 1, 2, 3), broadcast=nothing, sums=(Sum(spec, 3),)))
        assert (missing.survivors, missing.totals) == ((), {})
        assert "masks of the silent clients" in aggregator.log.abstained["server"]


# The training loop -----------------------------------------------------------------------------------


def test_the_loop_finds_the_mean_within_its_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(LOOP, "loop.py", "exec"), names)
    mean = np.mean([x.mean(0) for x, _ in names["clients"]], axis=0)
    assert np.abs(names["w"] - mean).max() < 0.3
    assert 0 < names["spent"] <= 2.0
