"""Values of which a total tells more than a linear guess: ternary updates, maps, entries of one contributor.

Each attack has an honest server's totals alone, and the truth is what the clients put into the sum.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.every import every
from support.hidden_studies import counts
from support.supernets import context, supernet
from support.tiny_study import run, text, with_privacy, world
from support.watched_sums import Watched

from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import ValueSpec
from securefl.core.errors import ConfigError
from securefl.core.release import SERVER
from securefl.engine import privacy_card
from securefl.mechanisms.charges import Protection
from securefl.protocols.adds.contributions import Map
from securefl.protocols.adds.subnet_search import Search
from securefl.study.composition import composition
from securefl.study.config import Study, parse
from securefl.training import ModelConfig

CLIENTS = 10
STC = "stc", "p = 0.05"
Integers = NDArray[np.int64]


def study(
    protocol: str, options: str = "", how: str = "masked", *, rounds: int = 1, skew: float = 0.0, **words: str
) -> Study:
    """Ten clients, all in each sum, under a server that follows the protocol.

    skew: Dirichlet's alpha of the labels, 0 for none.
    """
    arm = f'[[arm]]\nname = "x"\nprotocol = "{protocol}"\nfraction = 1.0\n{options}\n'
    written = text(arm, clients=CLIENTS, rounds=rounds).replace("hidden = [8]", "hidden = [32]")
    if skew:
        written = written.replace('"iid"', f'"dirichlet", alpha = {skew}')
    said = {"sum": f'"{how}"', "secagg": '"semi-honest"', "dropout": "0.0", "corrupt": "0.1"}
    said |= {"min_cohort_size": f"{CLIENTS}", "max_client_weight": "0.4", **counts(CLIENTS), **words}
    return parse(with_privacy(written, said))


def sums_of(of: Study, folder: Path, patch: pytest.MonkeyPatch) -> list[tuple[Integers, Integers]]:
    """Of each sum, the total that the server opens (d,), and what each client put into it (K, d)."""
    watched = Watched(patch)
    run(of, folder)
    found = []
    for header, query, answers in watched.asked:
        (question,) = query.sums
        total = np.rint(answers.totals[question.spec.name].value / question.spec.grid.step).astype(np.int64)
        found.append((total, np.array(watched.left(header, question.spec.name, answers), np.int64)))
        assert (found[-1][1].sum(0) == total).all()
    return found


# Ternary values ------------------------------------------------------------------------------------


def taken_apart(total: Integers) -> dict[int, Integers]:
    """What each client put in, by its mu. The K most frequent sizes are the mus.

    An entry is the first that fits: a sum of mus of one sign, few before many, or one with one mu against it.
    """
    sizes = Counter(np.abs(total[total != 0]).tolist())
    mus = np.array([size for size, _ in sizes.most_common(CLIENTS)])
    together = np.array([*product((0, 1), repeat=CLIENTS)])[1:]
    together = together[np.argsort(together.sum(1), kind="stable")]
    turned = np.concatenate([together * np.where(np.arange(CLIENTS) == k, -1, 1) for k in range(CLIENTS)])
    rows = np.concatenate([together, -together, turned, -turned])
    known: dict[int, int] = {}
    for row, value in enumerate((rows @ mus).tolist()):
        known.setdefault(value, row)
    found = np.zeros((CLIENTS, len(total)), np.int64)
    for entry in np.flatnonzero(total):
        if (row := known.get(int(total[entry]), -1)) >= 0:
            found[:, entry] = rows[row] * mus
    return dict(zip(mus.tolist(), found, strict=True))


def test_a_total_of_ternary_values_is_taken_apart_client_by_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sizes mu_k are the totals' most frequent ones, and each entry is a sum of few of them."""
    _, (total, left) = sums_of(study(*STC, rounds=2), tmp_path, monkeypatch)
    found = taken_apart(total)
    mus = np.abs(left).max(1).tolist()
    assert set(found) == set(mus), "every mu_k is read"
    guesses = np.array([found[mu] for mu in mus])
    assert np.mean((guesses == left)[left != 0]) > 0.9
    # The card said that a guess errs by 0.89 of a deviation, or more.
    assert np.sqrt(np.mean((guesses - left) ** 2)) / left.std() < 0.5


# Maps ----------------------------------------------------------------------------------------------


def maps_that_fit(pairs: Integers, alone: tuple[Integers, Integers], clients: int) -> set[Any]:
    """All sets of maps, a row of units for each client, that give these counts.

    pairs: (J2, J1), how many clients have both units. alone: (J1,) and (J2,), how many have each unit.
    """
    sets = np.arange(2**clients)
    size = np.array([int(one).bit_count() for one in sets])
    both = size[sets[:, None] & sets[None]]
    fits = [size[None] == alone[0][:, None]]  # (J1, 2^K): who may have each unit of the first layer
    found, chosen = set(), []

    def grow(unit: int) -> None:
        if unit == len(alone[1]):
            for first in product(*(np.flatnonzero(row) for row in fits[-1])):
                members = np.array([*first, *chosen])
                found.add(tuple(sorted(tuple((members >> k & 1).tolist()) for k in range(clients))))
            return
        for own in np.flatnonzero(size == alone[1][unit]):
            left = fits[-1] & (both[own][None] == pairs[unit][:, None])
            if left.any(1).all():
                fits.append(left)
                chosen.append(own)
                grow(unit + 1)
                fits.pop()
                chosen.pop()

    grow(0)
    return found


def test_the_counts_of_pairs_give_every_single_map() -> None:
    """One set of maps fits the total, and it is the clients': how the sum is hidden does not matter."""
    clients, net = 5, supernet(ModelConfig(kind="mlp", hidden=(12, 12)))
    own = Map(net, Search(importance="lrp", rate=0.1))
    values = [own.compute(context(net, client=k, classes=3)) for k in range(clients)]
    total = np.sum([value.integers for value in values], axis=0)

    def count(*units: int) -> int:
        """How many clients have these units: of the groups among them, the one of all has the fewest."""
        there = np.zeros(net.units, np.bool_)
        there[[*units]] = True
        return int(total[net.kept_groups(there)].min())

    one, two = (range(net.units)[layer.own] for layer in net.sampled)
    pairs = np.array([[count(i, j) for i in one] for j in two])
    alone = np.array([count(i) for i in one]), np.array([count(j) for j in two])
    truth = sorted(tuple(value.new_state["units"].astype(int).tolist()) for value in values)  # type: ignore[index]
    assert maps_that_fit(pairs, alone, clients) == {tuple(truth)}


HIDDEN = ("masked", "two-server", "ckks")


@every("how", HIDDEN)
def test_maps_are_refused_under_hidden_sums_without_noise(how: str) -> None:
    of = study("adds", "rate = 0.1", how)
    with pytest.raises(ConfigError, match=r"'map'.*update_bound"):
        composed(of)


def test_maps_leave_with_noise_and_in_the_clear() -> None:
    noised = {"noise": '"distributed"', "epsilon": "8.0", "unit": '"client"', "adjacency": '"zero-out"'}
    of = study("adds", "rate = 0.1", non_private="[]", **noised)
    plan, specs = composed(replace(of, local=replace(of.local, update_bound=1.0)))
    assert [Protection(plan, spec).open_to for spec in specs] == [[], []]
    plan, specs = composed(parse(text('[[arm]]\nname = "x"\nprotocol = "adds"\nfraction = 1.0\n')))
    assert all(SERVER in Protection(plan, spec).open_to for spec in specs)


def test_a_foreign_map_is_refused_by_its_client() -> None:
    """The word in the spec decides, whoever wrote the value, and each client computes the charge itself."""
    foreign = ValueSpec(name="own", reduction="sum", reveals="a map", form="map")
    plan, _ = composed(study("fedavg"))
    plan = replace(plan, non_private=("own",))
    with pytest.raises(ConfigError, match="own map"):
        Protection(plan, foreign).charge()
    assert (
        Protection(plan, replace(foreign, form="real")).charge()
        == Protection(plan, replace(foreign, form="discrete")).charge()
    )
    clear = replace(plan, sum="clear")
    assert Protection(clear, foreign).charge() == Protection(plan, replace(foreign, form="real")).charge()


# Entries of one contributor, and the card -----------------------------------------------------------


def test_an_entry_that_one_client_alone_moves_is_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FedAvg on skewed labels: many entries of a masked total are one client's, to the last bit."""
    of = study("fedavg", 'aggregation = "partial"', skew=0.1)
    [(total, left)] = sums_of(of, tmp_path, monkeypatch)
    movers = (left != 0).sum(0)
    one = movers == 1
    assert one.sum() > 0.05 * (movers > 0).sum()
    assert (np.abs(total[one]) == np.abs(left[:, one]).max(0)).all()
    assert "one client alone moves" in card(of)


def composed(of: Study) -> tuple[Plan, list[ValueSpec]]:
    here = world(of)
    algorithm, plan = composition(of, of.arms[0], here)
    return plan, [own.spec for own in algorithm.contributions]


def card(of: Study) -> str:
    plan, specs = composed(of)
    return privacy_card.learns(plan, specs, SERVER)


def errors(said: str) -> list[str]:
    """The figures of a guess that the card states."""
    return re.findall(r"errs by ([\d.]+)", said)


@every("how", HIDDEN)
@every(
    ("protocol", "options", "names"),
    [(*STC, "update"), ("cs_fl", "measurements = 0.5\nsparsity = 0.01", "update and votes")],
)
def test_the_card_states_no_figure_of_values_whose_form_tells(
    protocol: str, options: str, names: str, how: str
) -> None:
    said = card(study(protocol, options, how))
    assert errors(said) == []
    assert f"one client's {names}:" in said


def test_the_card_states_a_figure_of_real_numbers_and_none_of_undeclared_ones() -> None:
    plan, [update] = composed(study("fedavg", 'aggregation = "partial"'))
    assert errors(privacy_card.learns(plan, [update], SERVER)) != []
    foreign = ValueSpec(name="update", reduction="sum", reveals="something")
    assert errors(privacy_card.learns(plan, [foreign], SERVER)) == []
