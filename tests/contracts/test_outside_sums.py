"""A way of summing from outside the package, in one file: zero-sum masks from one secret of all clients.

Client k adds PRG(k) and takes PRG(k + 1) off, around the whole cohort. All masks cancel if everybody answers;
otherwise there is no sum. Whoever knows the clients' secret knows all masks: this is a toy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.hidden_plans import hidden
from support.hidden_studies import counts
from support.outside import mute
from support.tiny_study import spied, text, with_privacy

from securefl.algorithm.clients import ClientFunction
from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import CohortQuery, Sum, Value, ValueSpec
from securefl.core.acts import entering
from securefl.core.agreement import Agreement, Directory, Identity, u32
from securefl.core.entropy import derived
from securefl.core.errors import ConfigError, RemoteProtocolError
from securefl.core.hiding import ComputeAndConceal, Concealed
from securefl.core.keys import SecretKey
from securefl.core.machine import Expects, Need, Outgoing, Step
from securefl.core.release import SERVER, Release
from securefl.core.wire import Limit, message
from securefl.engine.aggregator import SecureAggregator
from securefl.secagg.masks import apply_masks
from securefl.secagg.packing import centred, words
from securefl.storage.own_record import PartyKeys
from securefl.study.config import parse
from securefl.sums import registry
from securefl.sums.scheme import Attempt, Opened, Unopened

GROUP_SECRET = SecretKey(b"known to every client")


@message("zero-sum-input", version=1, sender="client")
@dataclass(frozen=True, kw_only=True)
class Input:
    releases: tuple[Release, ...]


@dataclass(frozen=True, kw_only=True)
class Client:
    identity: Identity
    agreement: Agreement

    def begin(self) -> Step[str]:
        cohort = len(self.agreement.roster.members)
        return Step("entering", need=Need(entering(self.identity.name, self.agreement, cohort)))

    def expects(self, state: str) -> Expects:
        return Expects(self.agreement.header, {})

    def receive(self, state: str, sender: str, said: Any) -> Step[str]:
        raise RemoteProtocolError("Nobody speaks to a client here.", sender=sender, phase=state)

    def provide(self, state: str, answer: Any) -> Step[str]:
        if answer is None:
            return Step("done", result="abstained")
        if state == "entering":
            conceal = {v.name: partial(self.masked, i) for i, v in enumerate(self.agreement.vectors)}
            order = ComputeAndConceal(
                client=self.identity.name, header=self.agreement.header, conceal=conceal
            )
            return Step("hiding", need=Need(order))
        return Step("done", out=(Outgoing((SERVER,), Input(releases=answer)),), result="answered")

    def deadline(self, state: str) -> Step[str]:
        return Step(state)

    def masked(self, vector: int, integers: NDArray[Any]) -> Concealed:
        fresh, own = words(integers, 64), self.agreement.roster.numbers[self.identity.name]
        place = b"zero-sum" + self.agreement.context
        here, after = own, (own + 1) % len(self.agreement.roster.members)
        plus, minus = (derived(GROUP_SECRET, place + u32(one)) for one in (here, after))
        apply_masks(fresh, vector, add=[plus], subtract=[minus])
        return Concealed("masked", fresh.view(np.int64))


@dataclass(frozen=True)
class Came:
    inputs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Server:
    agreement: Agreement

    def begin(self) -> Step[Came]:
        return Step(Came())

    def expects(self, state: Came) -> Expects:
        most = sum(8 * vector.length for vector in self.agreement.vectors) + 4096
        return Expects(self.agreement.header, {Input: Limit(most, len(self.agreement.vectors))})

    def receive(self, state: Came, sender: str, said: Any) -> Step[Came]:
        sizes = [(v.name, "masked", (v.length,)) for v in self.agreement.vectors]
        if [(one.name, one.form, one.numbers.shape) for one in said.releases] != sizes:
            raise RemoteProtocolError("Expected masked vectors.", sender=sender, phase="adding")
        state = replace(state, inputs={sender: said.releases, **state.inputs})
        missing = self.agreement.roster.numbers.keys() - state.inputs.keys()
        return Step(state) if missing else Step(state, result=self.total(state))

    def provide(self, state: Came, answer: Any) -> Step[Came]:
        return Step(state)

    def deadline(self, state: Came) -> Step[Came]:
        return Step(state, result=Unopened(reason="No sum: the masks of those who did not answer remain."))

    def total(self, state: Came) -> Opened:
        columns = zip(*state.inputs.values(), strict=True)
        whole = [np.sum([one.numbers for one in column], axis=0) for column in columns]
        named = zip(self.agreement.vectors, whole, strict=True)
        totals = {vector.name: centred(own.view(np.uint64), 64) for vector, own in named}
        return Opened(totals=totals, survivors=tuple(self.agreement.roster.numbers))


class ZeroSum:
    key_holder_learns = ""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def check(self, spec: ValueSpec, cohort: int) -> None:
        if self._plan.dropout:
            raise ConfigError("Expected dropout = 0: zero-sum masks cancel only if everybody answers.")

    def clients(self, directory: Directory) -> Side:
        return Side(self._plan, directory)

    def server(self, own: PartyKeys) -> Side:
        return Side(self._plan, own.directory)

    def key_holder(self, own: PartyKeys) -> None:
        return None


@dataclass(frozen=True)
class Side:
    """Clients and server need no more than their plan and the pinned keys."""

    plan: Plan
    directory: Directory

    def agreement(self, attempt: Attempt) -> Agreement:
        return Agreement(
            header=attempt.header,
            roster=self.directory.roster(attempt.cohort),
            vectors=tuple(replace(vector, bits=64) for vector in attempt.vectors()),
            plan=self.plan.digest(),
            task=attempt.task,
        )

    def machines(self, attempt: Attempt, identities: Sequence[Identity], key: bytes) -> Mapping[str, Any]:
        agreed = self.agreement(attempt)
        return {one.name: Client(identity=one, agreement=agreed) for one in identities}

    def check(self, attempt: Attempt) -> None:
        self.agreement(attempt)

    def machine(self, attempt: Attempt, key: bytes) -> Server:
        return Server(agreement=self.agreement(attempt))

    def outcome(self, machine: Server, result: Opened | Unopened) -> Opened | Unopened:
        return result


# What a study and a loop of one's own do with it -------------------------------------------------


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a distribution would be that has it in the entry-point group `securefl.sums`."""
    own, found = EntryPoint("zero-sum", f"{__name__}:ZeroSum", "securefl.sums"), registry.entry_points
    monkeypatch.setattr(registry, "entry_points", lambda group: (*found(group=group), own))


ARM = '[[arm]]\nname = "x"\nprotocol = "fedavg"\nfraction = 1.0\n'
HIDDEN = {"sum": '"zero-sum"', "dropout": "0.0", "corrupt": "0.0", "max_client_weight": "0.51", **counts(4)}


def test_a_study_has_the_same_models_as_in_the_clear(tmp_path: Path) -> None:
    written = text(ARM, clients=4)
    clear, _ = spied(parse(written), tmp_path / "clear")
    hidden, finished = spied(parse(with_privacy(written, HIDDEN)), tmp_path / "hidden")
    for a, b in zip(clear.states, hidden.states, strict=True):
        assert np.array_equal(a.broadcast, b.broadcast)
    assert [record["answered"] for record in finished.records] == [list(range(4))] * 2
    assert not any(record["rejected_from"] or record["abstained"] for record in finished.records)


def test_what_it_does_not_allow_is_told_before_the_run(tmp_path: Path) -> None:
    written = with_privacy(text(ARM, clients=4), HIDDEN | {"dropout": "0.3"})
    with pytest.raises(ConfigError, match="Expected dropout = 0"):
        spied(parse(written), tmp_path)


def test_a_client_that_is_silent_costs_the_sum_and_the_door_says_so(tmp_path: Path) -> None:
    spec = ValueSpec(name="own", reduction="sum", reveals="it")
    plan = hidden(Plan(delta=1e-5, max_rounds=2, non_private=("own",)), 4, sum="zero-sum")
    records = [(np.ones((k, 1)), np.zeros(k)) for k in (1, 2, 3, 0)]
    given = ClientFunction(spec, lambda context: Value(clear=np.full(3, float(len(context.x)))))
    with SecureAggregator(plan, [given], records, ledger=tmp_path / "ledger.sqlite") as aggregator:
        answers = aggregator.query(
            CohortQuery(cohort=(0, 1, 2), broadcast=np.zeros(0, np.float32), sums=(Sum(spec, 3),))
        )
        assert answers.survivors == (0, 1, 2)
        assert answers.totals["own"].value.tolist() == [6.0] * 3
        mute(aggregator, "client-0003")
        missing = aggregator.query(
            CohortQuery(cohort=(0, 1, 2, 3), broadcast=np.zeros(0, np.float32), sums=(Sum(spec, 3),))
        )
        assert (missing.survivors, missing.totals) == ((), {})
        assert "masks of those who did not answer" in aggregator.log.abstained["server"]


def test_a_word_that_nobody_knows_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"'zero-sun' .*`zero-sum`"):
        parse(with_privacy(text(ARM, clients=4), HIDDEN | {"sum": '"zero-sun"'}))
