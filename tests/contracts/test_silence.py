"""Silence is a message: under a finite epsilon neither who answers nor any length tells of the records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.combinations import ALL, TURNS, Combination
from support.combinations import study as combined
from support.every import every
from support.private_studies import DISTRIBUTED, KEY_HOLDER, client_level, noised_fedprof, private
from support.tiny_study import FEDAVG, composed, run, text, world
from support.tiny_study import study as written

from securefl.algorithm.queries import Value
from securefl.core.abstaining import Reason
from securefl.core.errors import ConfigError, DataError, LocalProtocolError
from securefl.core.release import KEY_HOLDER as HOLDER
from securefl.core.release import OTHERS, SERVER
from securefl.core.wire import peek
from securefl.core.wire.coding import MAGIC
from securefl.engine.drive import Packet
from securefl.engine.network import Network
from securefl.engine.party import computing
from securefl.engine.party.computing import Computing, Records
from securefl.engine.party.contributing import Contributing
from securefl.mechanisms.charges import Protection, unbounded
from securefl.study.arm import ArmRun
from securefl.study.config import Study, parse
from securefl.study.seeded import World

# What an observer of the network sees -------------------------------------------------------------

TARGET = 1
"""The client in whose records neighbours differ."""


@dataclass(frozen=True, order=True)
class Seen:
    """One message, as far as it can be seen without its content."""

    place: tuple[int, int, int]
    kind: str
    sender: str
    to: str
    size: int


@dataclass
class Transcript:
    """All messages of a run, and what came of it."""

    seen: list[Seen] = field(default_factory=list)
    finished: ArmRun | None = None

    def pattern(self) -> Counter[Seen]:
        """Who, what, where and how long. When a message came is not promised."""
        return Counter(self.seen)


def transcript(of: Study, here: World, folder: Path) -> Transcript:
    """Run the study's first arm in this world, and watch its network."""
    found = Transcript()
    posted = Network._post

    def watch(network: Network, parcels: Sequence[Packet]) -> None:
        for parcel in parcels:
            at = len(MAGIC) + 1
            kind = parcel.data[at : at + parcel.data[at - 1]].decode()
            place = peek(parcel.data, parcel.sender).place()
            found.seen.append(Seen(place, kind, parcel.sender, parcel.to, len(parcel.data)))
        posted(network, parcels)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Network, "_post", watch)
        found.finished = run(of, folder, here=here)
    return found


# Neighbours -----------------------------------------------------------------------------------------


def having(here: World, x: Any, y: Any) -> World:
    """The same world, in which the client has these records."""
    records: list[Records] = list(here.records)
    records[TARGET] = (x, y)
    return replace(here, records=records)


def few(here: World, count: int) -> World:
    """The client has so many of its records left."""
    x, y = here.records[TARGET]
    return having(here, x[:count], y[:count])


def spoilt(here: World, how: str) -> World:
    """One record of the client is replaced by one that cannot be used."""
    x, y = (part.copy() for part in here.records[TARGET])
    match how:
        case "nan" | "inf":
            x[0] = float(how)
        case "huge":
            x[0] = np.float32(1e30)
        case "label":
            y[0] = 2**40
        case "negative label":
            y[0] = -7
        case "code":
            x[0] = 2**30
        case "negative code":
            x[0] = -3
        case "target":
            y[0] = np.nan
    return having(here, x, y)


def all_spoilt(here: World, how: str) -> World:
    """No record of the client can be used."""
    x, y = (part.copy() for part in here.records[TARGET])
    for row in range(len(y)):
        one = spoilt(having(here, x[row : row + 1], y[row : row + 1]), how).records[TARGET]
        x[row], y[row] = one[0][0], one[1][0]
    return having(here, x, y)


# The tests ----------------------------------------------------------------------------------------


SPOILT = ("nan", "inf", "huge", "label", "negative label")
LOSSES = "loss_bound = 3.0\nfraction = 1.0"
NOISED = {"noise": '"local"', "epsilon": "8.0"}
PRIVATE = {
    "fedavg": private("fedavg", 'fraction = 1.0\naggregation = "partial"'),
    "fedavg by counts": private("fedavg", 'fraction = 1.0\naggregation = "full"'),
    "fedprox": private("fedprox", "fraction = 1.0"),
    "fedadam": private("fedadam", "fraction = 1.0"),
    "lg_fedavg": private("lg_fedavg", ""),
    "fedrep": private("fedrep", ""),
    "fedbabu": private("fedbabu", "fine_tune_epochs = 1"),
    "cfcfm": private("cfcfm", "fraction = 1.0"),
    "stc": private("stc", "fraction = 1.0\np = 0.1"),
    "cs_fl": private("cs_fl", "fraction = 1.0\nsigns = true"),
    "fedprof": noised_fedprof(),
    "active_fl": private("active_fl", LOSSES, **NOISED),
    "pow_d": private("pow_d", LOSSES, **NOISED),
    "fedlog, DP-SGD body": private("fedlog", 'body = "dp-sgd"', **NOISED),
}
"""Record-level privacy by DP-SGD, and noise on whatever else is sent."""


def mixed(here: World) -> World:
    """Several records of the client cannot be used, each in another way."""
    x, y = (part.copy() for part in here.records[1])
    for row, how in enumerate(SPOILT):
        one = spoilt(having(here, x[row : row + 1], y[row : row + 1]), how).records[1]
        x[row], y[row] = one[0][0], one[1][0]
    return having(here, x, y)


NEIGHBOURS = {
    "none": lambda here: few(here, 0),
    "one": lambda here: few(here, 1),
    "one less": lambda here: few(here, -1),
    "several spoilt": mixed,
    **{f"one {how}": lambda here, how=how: spoilt(here, how) for how in SPOILT},
    **{f"all {how}": lambda here, how=how: all_spoilt(here, how) for how in SPOILT},
}
FAST = ("none", "several spoilt")


def epsilon(found: Transcript, party: str = OTHERS) -> float:
    assert found.finished is not None
    return float(found.finished.records[-1]["epsilon"][party])


def require_alike(of: Study, folder: Path, neighbours: Any, here: World | None = None) -> None:
    here = here or world(of)
    base = transcript(of, here, folder / "base")
    # what the second sum of ADDS holds, and whether there is one, follows from noised counts; the length of a
    # coded change of the model follows from noised updates
    adaptive = of.arms[0].protocol in ("adds", "cs_fl", "stc")
    for name in neighbours:
        other = transcript(of, NEIGHBOURS[name](here), folder / name.replace(" ", "-"))
        places = [{seen.place for seen in own.seen} for own in (base, other)]
        if not adaptive or places[0] == places[1]:
            assert epsilon(other) == epsilon(base) < 100
        if adaptive:
            shared = places[0] & places[1]
            assert shared
            one, two = (
                Counter(replace(seen, size=0) for seen in own.seen if seen.place in shared)
                for own in (base, other)
            )
            assert one == two, name
            require_level(other)
            continue
        assert other.pattern() == base.pattern(), name


def require_level(found: Transcript) -> None:
    """Whatever one client contributes, each client contributes at the same length."""
    sizes: dict[Any, set[int]] = {}
    for seen in found.seen:
        if seen.kind == "contribution":
            sizes.setdefault(seen.place, set()).add(seen.size)
    assert all(len(own) == 1 for own in sizes.values())


def test_the_attack_one_training_record_or_none(tmp_path: Path) -> None:
    """Specification of DP, 2.20: a client without records abstained, since its count is charged nothing."""
    of = PRIVATE["fedavg by counts"]
    none, one = (transcript(of, few(world(of), count), tmp_path / str(count)) for count in (0, 1))
    assert 0 < epsilon(none, SERVER) < 20
    assert none.pattern() == one.pattern()


@every("name", PRIVATE)
def test_private_records_show_in_no_pattern(name: str, tmp_path: Path) -> None:
    require_alike(PRIVATE[name], tmp_path, FAST)


@pytest.mark.slow
@pytest.mark.parametrize("name", PRIVATE)
def test_no_neighbour_of_private_records_shows(name: str, tmp_path: Path) -> None:
    require_alike(PRIVATE[name], tmp_path, NEIGHBOURS)


def finite(of: Study, here: World) -> bool:
    """Whether all that the arm sends has a finite price against the other clients."""
    algorithm, plan = composed(of, here)
    return not any(
        unbounded([Protection(plan, contribution.spec).charge()], (OTHERS,))
        for contribution in algorithm.contributions
    )


def named(one: Combination) -> str:
    (name, options), scheme, noise = one
    return f"{name} {options} {scheme} {noise}".replace("\n", " ")


@pytest.mark.parametrize("one", [one for one in TURNS if one[2] != "none"], ids=named)
def test_no_sum_shows_in_its_pattern_who_has_records(one: Combination, tmp_path: Path) -> None:
    of = combined(one)
    here = world(of)
    here = replace(here, records=[(x[:16], y[:16]) for x, y in here.records])  # more train longer
    if not finite(of, here):
        pytest.skip("an epsilon that is infinite")
    require_alike(of, tmp_path, ["none"], here)


@pytest.mark.slow
@pytest.mark.parametrize("one", [one for one in ALL if one[2] != "none"], ids=named)
def test_no_combination_shows_a_neighbour(one: Combination, tmp_path: Path) -> None:
    of = combined(one)
    here = world(of)
    if not finite(of, here):
        pytest.skip("an epsilon that is infinite")
    require_alike(of, tmp_path, ["none", "one", "one less", "several spoilt", "all nan"], here)


@every("noise", ["central", "distributed", "key-holder"])
def test_clients_are_private_as_a_whole(noise: str, tmp_path: Path) -> None:
    said = {"central": {}, "distributed": DISTRIBUTED, "key-holder": KEY_HOLDER}[noise]
    more = {} if noise == "central" else {"min_cohort_size": "4", "max_client_weight": "0.51"}
    require_alike(client_level(rounds=1, **said, **more), tmp_path, ["none", "all nan"])


def test_a_key_holder_with_epsilon_0_sees_everybody_answer(tmp_path: Path) -> None:
    """Profiles are unprotected against the server. The key holder opens one score of each all the same."""
    arm = '[[arm]]\nname = "x"\nprotocol = "fedprof"\nfraction = 1.0\n'

    of = parse(
        text(arm, rounds=1, clients=4, scores="ckks").replace(
            'scores = "ckks"', 'scores = "ckks"\nparameters = "compact"'
        )
    )
    here = world(of)
    base, bad = (
        transcript(of, own, tmp_path / str(k)) for k, own in enumerate((here, all_spoilt(here, "nan")))
    )
    assert epsilon(bad, HOLDER) == 0
    assert base.finished is not None
    assert bad.finished is not None
    requests = [[seen for seen in own.seen if seen.to == HOLDER] for own in (base, bad)]
    assert Counter(requests[0]) == Counter(requests[1])
    assert "client-0001" in bad.finished.records[0]["without_records"]


# Reasons ------------------------------------------------------------------------------------------


def test_every_reason_has_a_class_and_one_alone_is_of_the_records() -> None:
    assert [reason for reason in Reason if reason.told == "records"] == [Reason.RECORDS]
    assert {reason.told for reason in Reason} == {"public", "charged", "holder", "records"}
    assert len({reason.word for reason in Reason}) == len(Reason)


def test_a_reason_of_the_records_cannot_be_expressed_where_silence_tells() -> None:
    party: Any = object.__new__(Contributing)
    with pytest.raises(LocalProtocolError, match="whatever its records are"):
        party._abstain(0, DataError("It has none."), speaks=True)


def test_the_class_of_a_reason_is_on_record(tmp_path: Path) -> None:
    """Without noise a client may be silent; the person at the machine sees that its records are why."""
    of = written(FEDAVG.replace("0.5", "1.0"), rounds=1)
    finished = run(of, tmp_path, here=all_spoilt(world(of), "nan"))
    assert finished.records[0]["reasons"] == {"client-0001": "records"}
    assert not finished.records[0]["without_records"]


def test_an_update_beyond_its_grid_is_cut_and_not_silent(tmp_path: Path) -> None:
    """Private training is paid for, so its model may be far away; its length and sender stay."""
    of = private("fedavg", 'fraction = 1.0\naggregation = "partial"')
    wild = parse(of.text.replace("learning_rate = 0.5\n", "learning_rate = 5e3\n"))
    found = transcript(wild, world(wild), tmp_path)
    assert found.finished is not None
    assert not any(record["abstained"] for record in found.finished.records)
    assert all(np.isfinite(record["epsilon"][SERVER]) for record in found.finished.records)


@every("speaking", [{0}, set()])
def test_training_that_fails_for_one_client_stops_no_other(speaking: set[int]) -> None:
    def fails(fits: Any) -> Any:
        raise RuntimeError("A code beyond the embedding.")

    values: Any = object.__new__(Computing)
    task = SimpleNamespace(client=0, wants=("update",))
    vars(values).update(
        _fits={"update": SimpleNamespace(fit=lambda context: context)},
        _values={},
        _trainer=fails,
        _job=lambda *asked: asked,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(computing, "_question", lambda task, name: name)
        if speaking:
            values.train([(task, None)], speaking)
            assert values._trained == {}
        else:
            with pytest.raises(RuntimeError, match="beyond the embedding"):
                values.train([(task, None)], speaking)


def test_a_wave_that_cannot_be_made_together_is_made_client_by_client() -> None:
    """A record of one client stops its pass. Other clients' values are as without it."""
    asked: list[int] = []

    class Own:
        spec = None

        def compute(self, context: Any) -> Value:
            if context == 1:
                raise DataError("Its records are odd.")
            return Value(clear=np.full(2, float(context)))

        def of_wave(self, contexts: Any) -> Any:
            asked.append(len(contexts))
            if 1 in contexts:
                raise RuntimeError("A code beyond the embedding.")
            return [partial(self.compute, context) for context in contexts]

    def mixing(contexts: Any) -> Any:
        raise ConfigError("It mixes.")

    values: Any = object.__new__(Computing)
    own = Own()
    vars(values).update(
        _of_waves={"number": own},
        _contributions={"number": own},
        _values={},
        _trained={},
        _made={},
        _job=lambda task, *_: task.client,
        _noted=lambda task, name, value: value,
    )
    tasks = [SimpleNamespace(client=k, wants=("number",)) for k in range(3)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(computing, "_question", lambda task, name: name)
        for wave in (tasks, [tasks[0], tasks[2]]):
            values.make([(task, None) for task in wave])
            for task in wave:
                if task.client == 1:
                    with pytest.raises(DataError, match="odd"):
                        values.value(task, "number", None)
                else:
                    assert values.value(task, "number", None).clear.tolist() == [task.client] * 2
        assert asked == [3, 2]
        patch.setattr(own, "of_wave", mixing)
        with pytest.raises(ConfigError, match="mixes"):
            values.make([(tasks[0], None)])
