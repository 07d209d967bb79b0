"""The five commands on files, as three people would run them, and every file that must be refused."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from securefl import profiles
from securefl.accounting.ledger import Ledger, Terms
from securefl.commands.main import cli
from securefl.core.errors import DataError, SecureFLError
from securefl.matching import Evaluator, KeyHolder, NothingLeft, Options, Profile, document
from securefl.profiles import Bounds, divergence

CLIENTS = {
    "p1": ([0.1, 0.2, -1.0], [1.0, 2.0, 0.5]),
    "p2": ([1.0, 0.0, 0.0], [1.0, 1.0, 1.0]),
}
BASE = ([0.0, 0.1, 0.0], [1.0, 1.5, 1.0])
LOOSE = Options(bounds=Bounds(mean=16, weight=1e6))


def call(*words: object, code: int = 0) -> str:
    """Run a command in this process; the output. Nothing but the package's errors may come out."""
    result = CliRunner().invoke(cli, [str(w) for w in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        assert isinstance(result.exception, SecureFLError), result.exception
        assert code == 1, result.exception
        return str(result.exception)
    assert result.exit_code == code, result.output
    return result.output


def write(path: Path, values: tuple[list[float], list[float]]) -> Path:
    path.write_text(json.dumps({"mean": values[0], "variance": values[1]}))
    return path


def kl(label: str) -> float:
    own, base = (profiles.Profile(np.array(m), np.array(s), 1) for m, s in (CLIENTS[label], BASE))
    return divergence(own, base)


class Place:
    """A folder with keys, profiles and the options of one matching."""

    def __init__(self, root: Path, *options: str) -> None:
        self.root, self.options = root, options
        call("keygen", "--role", "key-holder", "--out", root / "K")
        call("keygen", "--role", "evaluator", "--out", root / "V")
        for label, values in CLIENTS.items():
            write(root / f"{label}.json", values)
            self.encrypt(label)
        write(root / "b.json", BASE)

    def encrypt(self, label: str, kind: str = "--profile", *more: object, code: int = 0) -> str:
        keys = ("--public", self.root / "K/public.key", "--evaluator", self.root / "V/evaluator.pub")
        path = self.root / f"{label}.json"
        return call(
            "encrypt", *keys, kind, path, "-o", self.root / f"{label}.enc", *self.options, *more, code=code
        )

    def match(
        self, *files: str, baseline: str = "b.json", more: tuple[object, ...] = (), code: int = 0
    ) -> str:
        keys = ("--public", self.root / "K/public.key", "--evaluator", self.root / "V/evaluator.key")
        named = [self.root / f for f in files or ("p1.enc", "p2.enc")]
        return call(
            "match",
            *keys,
            "--baseline",
            self.root / baseline,
            *named,
            "-o",
            self.root / "scores.enc",
            *more,
            code=code,
        )

    def reveal(self, *more: str, code: int = 0) -> str:
        keys = ("--secret", self.root / "K/secret.key", "--evaluator", self.root / "V/evaluator.pub")
        return call("reveal", *keys, self.root / "scores.enc", *more, code=code)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A finished matching; copied before it is spoilt."""
    place = Place(tmp_path_factory.mktemp("matching"))
    place.match()
    return place


@pytest.fixture
def place(made: Place, tmp_path: Path) -> Place:
    shutil.copytree(made.root, tmp_path / "m")
    copy = object.__new__(Place)
    copy.root, copy.options = tmp_path / "m", ()
    return copy


# What works ------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", ["full", "mean-only"])
@pytest.mark.parametrize("params", ["strong", "compact"])
@pytest.mark.parametrize("baseline", ["b.json", "b.enc"])
def test_scores_by_name_within_a_joint_bound(
    variant: str, params: str, baseline: str, tmp_path: Path
) -> None:
    place = Place(tmp_path, "--variant", variant, "--params", params)
    if baseline == "b.enc" and params == "compact":
        assert "Use strong" in place.encrypt("b", "--baseline", code=1)
        return
    if baseline == "b.enc":
        place.encrypt("b", "--baseline")
    place.match(baseline=baseline)
    found = json.loads(place.reveal("--json"))
    assert set(found) == {"scores", "error_bound"}
    assert list(found["scores"]) == ["p1", "p2"]
    for label, score in found["scores"].items():
        assert abs(score - kl(label)) <= found["error_bound"] < 0.01


def test_names_are_those_of_the_profiles_not_of_the_files(place: Place) -> None:
    shutil.copy(place.root / "p1.json", place.root / "hospital.json")
    keys = ("--public", place.root / "K/public.key", "--evaluator", place.root / "V/evaluator.pub")
    call("encrypt", *keys, "--profile", place.root / "hospital.json", "-o", place.root / "x.enc")
    place.match("x.enc", "p2.enc")
    assert list(json.loads(place.reveal("--json"))["scores"]) == ["hospital", "p2"]


def test_secrets_are_their_owners_and_keys_are_not_overwritten(place: Place) -> None:
    place.reveal()
    for name in ("K/secret.key", "V/evaluator.key", "K/ledger.sqlite"):
        assert (place.root / name).stat().st_mode & 0o077 == 0, name
    assert "never overwritten" in call("keygen", "--role", "evaluator", "--out", place.root / "V", code=1)


def test_the_same_scores_again_count_once_and_are_released_once(place: Place) -> None:
    first = place.reveal("--json")
    assert place.reveal("--json") == first
    terms = Terms(unit="record", adjacency="replace-one", delta=1e-5)
    with Ledger(place.root / "K/ledger.sqlite", terms) as ledger:
        assert [(row[0], row[7]) for row in ledger.rows()] == [("p1", "committed"), ("p2", "committed")]
        assert ledger.epsilon("p1", "key-holder") == np.inf
        assert ledger.epsilon("p1", "server") == 0.0


def test_openings_are_capped_over_processes(tmp_path: Path) -> None:
    call("keygen", "--role", "key-holder", "--out", tmp_path / "K", "--openings", 3)
    call("keygen", "--role", "evaluator", "--out", tmp_path / "V")
    place = object.__new__(Place)
    place.root, place.options = tmp_path, ()
    for label, values in (*CLIENTS.items(), ("b", BASE)):
        write(tmp_path / f"{label}.json", values)
        if label != "b":
            place.encrypt(label)
    place.match()
    place.reveal()
    place.match()  # re-randomised: another request
    out = json.loads(
        CliRunner()
        .invoke(
            cli,
            [  # standard error carries the refusal
                "reveal",
                "--secret",
                str(tmp_path / "K/secret.key"),
                "--evaluator",
                str(tmp_path / "V/evaluator.pub"),
                str(tmp_path / "scores.enc"),
                "--json",
            ],
        )
        .stdout
    )
    assert list(out["scores"]) == ["p1"]
    assert "used up" in out["refused"]["p2"]
    assert "used up" in place.reveal(code=1)


def test_clipped_values_are_told(place: Place) -> None:
    write(place.root / "far.json", ([1000.0, 0.0, 0.0], [1.0, 1.0, 1.0]))
    assert "1 values lay outside" in place.encrypt("far")


def test_an_anchor_brings_far_profiles_into_the_bounds(tmp_path: Path) -> None:
    write(tmp_path / "a.json", ([1000.0, 0.0, 0.0], [1e4, 1.0, 1e-8]))
    call("keygen", "--role", "key-holder", "--out", tmp_path / "K")
    call("keygen", "--role", "evaluator", "--out", tmp_path / "V")
    place = object.__new__(Place)
    place.root, place.options = tmp_path, ("--anchor", str(tmp_path / "a.json"))
    own, base = ([1010.0, 0.1, 0.0], [9e3, 1.1, 1e-4]), ([990.0, 0.0, 0.0], [1e4, 1.0, 2e-4])
    write(tmp_path / "p1.json", own)
    write(tmp_path / "b.json", base)
    assert "clipped" not in place.encrypt("p1")
    place.match("p1.enc")
    found = json.loads(place.reveal("--json"))
    plain = (profiles.Profile(np.array(m), np.array(s), 1) for m, s in (own, base))
    assert abs(found["scores"]["p1"] - divergence(*plain)) <= found["error_bound"] < 1e-5


def test_a_profile_comes_from_records_and_a_model(place: Place) -> None:
    records = np.random.default_rng(1).normal(size=(50, 4))
    np.save(place.root / "d.npy", records)
    np.savetxt(place.root / "d.csv", records, delimiter=",")
    model = place.root / "m.toml"
    model.write_text(
        '[model]\nkind = "mlp"\nhidden = [5]\nprofiled_layer = "fc1"\n[weights]\noutputs = 2\nseed = 3\n'
    )
    for data in ("d.npy", "d.csv"):
        call("profile", "--data", place.root / data, "--model", model, "-o", place.root / f"{data}.json")
    one, other = (json.loads((place.root / f"{d}.json").read_text()) for d in ("d.npy", "d.csv"))
    assert len(one["mean"]) == len(one["variance"]) == 5
    assert one["count"] == 50
    np.testing.assert_allclose(one["mean"], other["mean"], rtol=1e-5)
    call("profile", "--data", "digits", "--rows", "0:9", "--model", model, "-o", place.root / "g.json")
    assert json.loads((place.root / "g.json").read_text())["count"] == 9
    keys = ("--public", place.root / "K/public.key", "--evaluator", place.root / "V/evaluator.pub")
    call("encrypt", *keys, "--profile", place.root / "g.json", "-o", place.root / "g.enc")
    (place.root / "b.json").write_text((place.root / "g.json").read_text())
    place.match("g.enc")  # a model's own profile fits the default bounds, unanchored
    found = json.loads(place.reveal("--json"))
    assert abs(found["scores"]["g"]) <= found["error_bound"] < 1e-4
    assert "Expected records in" in call(
        "profile", "--data", "digits", "--rows", "5:5", "--model", model, "-o", place.root / "g.json", code=1
    )


@pytest.mark.parametrize("command", ["keygen", "profile", "encrypt", "match", "reveal"])
def test_help_has_an_example(command: str) -> None:
    assert f"securefl {command}" in call(command, "--help")


@pytest.mark.parametrize("command", ["keygen", "match", "reveal"])
def test_help_says_that_the_cap_does_not_protect_the_key(command: str) -> None:
    told = " ".join(call(command, "--help").split())
    assert "reads the whole secret key" in told or "read the whole secret key" in told
    assert "few hundred openings" in told


def test_three_calls_in_python() -> None:
    keys, server = KeyHolder.generate(openings=10), Evaluator.generate()
    sealed = Profile(np.array([1.0]), np.array([1.0])).encrypt(keys.public, server.public)
    scores = server.match(keys.public, Profile(np.array([0.0]), np.array([1.0])), [sealed])
    found = keys.reveal(scores, server.public)
    assert abs(found.scores["profile"] - 0.5) <= found.error_bound  # KL(1, 1 | 0, 1)


# What is refused -------------------------------------------------------------------------------

FILES = ("K/public.key", "V/evaluator.key", "V/evaluator.pub", "p1.enc", "scores.enc", "K/secret.key")


def use(place: Place, name: str, code: int = 1) -> str:
    """A command that reads this file; a profile that is refused costs nobody else its score."""
    if name in ("scores.enc", "K/secret.key"):
        return place.reveal(code=code)
    if name == "p1.enc":
        told = place.match(code=3)
        assert "p2.enc -> p2" in told
        assert "p1.enc refused: " in told
        return told
    if name in ("K/public.key", "V/evaluator.key"):
        return place.match(code=code)
    return place.encrypt("p1", code=code)


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "a bit": lambda raw: raw[: len(raw) // 2] + bytes([raw[len(raw) // 2] ^ 1]) + raw[len(raw) // 2 + 1 :],
    "a bit of the header": lambda raw: raw[:40] + bytes([raw[40] ^ 1]) + raw[41:],
    "cut": lambda raw: raw[:-1],
    "cut to the first line": lambda raw: raw[: raw.index(b"\n") + 1],
    "longer": lambda raw: raw + b"\0",
    "empty": lambda raw: b"",
    "another version": lambda raw: raw.replace(b"securefl 2", b"securefl 1", 1),
    "text": lambda raw: b'{"mean": [1], "variance": [1]}',
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_files_are_refused_by_name(place: Place, name: str, damage: str) -> None:
    path = place.root / name
    path.write_bytes(DAMAGE[damage](path.read_bytes()))
    assert path.name in use(place, name)


def test_mailed_files_may_be_renamed(place: Place) -> None:
    for name, other in (
        ("K/public.key", "key (1)"),
        ("V/evaluator.pub", "pub"),
        ("V/evaluator.key", "k"),
        ("p1.enc", "Fwd p1.enc.txt"),
    ):
        (place.root / name).rename(place.root / other)
    keys = ("--public", place.root / "key (1)", "--evaluator", place.root / "k")
    more = ("--baseline", place.root / "b.json", place.root / "Fwd p1.enc.txt", "-o", place.root / "s")
    call("match", *keys, *more)
    (place.root / "K/secret.key").rename(place.root / "K/mine")
    keys = ("--secret", place.root / "K/mine", "--evaluator", place.root / "pub")
    assert call("reveal", *keys, place.root / "s").startswith("p1  ")


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_another_kind_is_refused(place: Place, name: str) -> None:
    for other in FILES:
        if other != name:
            shutil.copy(place.root / other, place.root / "saved")
            original = (place.root / name).read_bytes()
            shutil.copy(place.root / other, place.root / name)
            use(place, name)
            (place.root / name).write_bytes(original)


def resealed(path: Path, change: Callable[[dict[str, Any], bytes], tuple[dict[str, Any], bytes]]) -> None:
    """Change a file as a forger would: with a checksum that fits again."""
    raw = path.read_bytes()
    kind = raw.split(b"\n")[0].split()[-1].decode()
    content = document.Document.from_bytes(raw, kind)
    header, body = change(dict(content.header), content.body)
    path.write_bytes(document.Document(kind, header, body).to_bytes())


def with_number(number: str) -> Callable[[dict[str, Any], bytes], tuple[dict[str, Any], bytes]]:
    """A bound of this value; the header's JSON may hold what no double does."""
    return lambda h, b: ({**h, "bounds": {**h["bounds"], "mean": json.loads(number)}}, b)


FORGED: dict[str, tuple[str, Callable[[dict[str, Any], bytes], tuple[dict[str, Any], bytes]]]] = {
    "label of a profile": ("p1.enc", lambda h, b: ({**h, "label": "p9"}, b)),
    "bounds of a profile": ("p1.enc", lambda h, b: ({**h, "bounds": {**h["bounds"], "mean": 8.0}}, b)),
    "length of a profile": ("p1.enc", lambda h, b: ({**h, "length": 2}, b)),
    "options that are none": ("p1.enc", lambda h, b: ({**h, "bounds": 7}, b)),
    "bounds of text": ("p1.enc", lambda h, b: ({**h, "bounds": {**h["bounds"], "mean": "64"}}, b)),
    "a bound left out": ("p1.enc", lambda h, b: ({**h, "bounds": {"mean": 64.0}}, b)),
    "no variant": ("p1.enc", lambda h, b: ({**h, "variant": []}, b)),
    "an endless length": ("p1.enc", lambda h, b: ({**h, "length": 2**60}, b)),
    "variant of a profile": ("p1.enc", lambda h, b: ({**h, "variant": "mean-only"}, b)),
    "sealed bytes": ("p1.enc", lambda h, b: (h, b[:50] + bytes([b[50] ^ 1]) + b[51:])),
    "sealed key": ("p1.enc", lambda h, b: (h, bytes(32) + b[32:])),
    "a huge integer": ("p1.enc", with_number("1" + "0" * 400)),
    "a huge bound": ("p1.enc", with_number("1e200")),
    "a huge anchor": (
        "p1.enc",
        lambda h, b: ({**h, "anchor": {"centre": [10**400] * 3, "scale": [1] * 3}}, b),
    ),
    "no body": ("p1.enc", lambda h, b: (h, b"")),
    "session of a profile": ("p1.enc", lambda h, b: ({**h, "session": "0" * 64}, b)),
    "labels of scores": ("scores.enc", lambda h, b: ({**h, "labels": ["p2", "p1"]}, b)),
    "one label": ("scores.enc", lambda h, b: ({**h, "labels": ["p1"]}, b)),
    "labels that are none": ("scores.enc", lambda h, b: ({**h, "labels": "p1"}, b)),
    "scores": ("scores.enc", lambda h, b: (h, b[:100] + bytes([b[100] ^ 1]) + b[101:])),
    "scores in another order": (
        "scores.enc",
        lambda h, b: (h, b[(len(b) - 64) // 2 : -64] + b[: (len(b) - 64) // 2] + b[-64:]),
    ),
    "unsigned scores": ("scores.enc", lambda h, b: (h, b[:-64] + bytes(64))),
    "a public key": ("K/public.key", lambda h, b: (h, b[:100] + bytes([b[100] ^ 1]) + b[101:])),
    "a cap": ("K/public.key", lambda h, b: ({**h, "openings": 10**6}, b)),
    "a cap of text": ("K/public.key", lambda h, b: ({**h, "openings": "9"}, b)),
    "an evaluator": ("V/evaluator.pub", lambda h, b: ({**h, "sealing": "00" * 32}, b)),
    "an evaluator's key": ("V/evaluator.key", lambda h, b: (h, b[:-1] + bytes([b[-1] ^ 1]))),
    "a secret key": ("K/secret.key", lambda h, b: (h, b[:-1] + bytes([b[-1] ^ 1]))),
}


@pytest.mark.parametrize("what", FORGED)
def test_forged_files_are_refused(place: Place, what: str) -> None:
    name, change = FORGED[what]
    resealed(place.root / name, change)
    use(place, name)


def test_foreign_sessions_and_evaluators_are_refused(place: Place, tmp_path: Path) -> None:
    other = Place(tmp_path / "other")
    other.match()
    for name in (
        "K/public.key",
        "K/secret.key",
        "V/evaluator.key",
        "V/evaluator.pub",
        "p1.enc",
        "scores.enc",
    ):
        original = (place.root / name).read_bytes()
        shutil.copy(other.root / name, place.root / name)
        if name == "V/evaluator.pub":
            assert "another evaluator" in place.reveal(code=1)
        else:
            told = use(place, name, code=1 if name in ("K/secret.key", "scores.enc") else 2)
            assert "session" in told or "another evaluator" in told
        (place.root / name).write_bytes(original)


def test_no_input_is_overwritten(place: Place) -> None:
    before = (place.root / "p1.enc").read_bytes()
    keys = ("--public", place.root / "K/public.key", "--evaluator", place.root / "V/evaluator.key")
    more = ("--baseline", place.root / "b.json", place.root / "p1.enc", "-o", place.root / "p1.enc")
    assert "an input. Write to another" in call("match", *keys, *more, code=1)
    assert (place.root / "p1.enc").read_bytes() == before


def _stop(*_: object) -> None:
    raise DataError("Stopped.")


def test_a_reveal_that_stopped_half_way_goes_on(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed between reserving, opening and committing: the next one gives the score and charges once."""
    terms = Terms(unit="record", adjacency="replace-one", delta=1e-5)
    with monkeypatch.context() as stopped:
        stopped.setattr(Ledger, "open", _stop)
        place.reveal(code=1)
    with Ledger(place.root / "K/ledger.sqlite", terms) as ledger:
        assert [row[7] for row in ledger.rows()] == ["reserved"]
    first = place.reveal("--json")
    assert place.reveal("--json") == first
    with Ledger(place.root / "K/ledger.sqlite", terms) as ledger:
        assert [row[7] for row in ledger.rows()] == ["committed", "committed"]


@pytest.mark.parametrize("which", ["ledger.sqlite", "openings-*.sqlite"])
def test_a_deleted_record_beside_the_key_is_noticed(which: str, place: Place) -> None:
    place.reveal()
    for path in (place.root / "K").glob(which + "*"):
        path.unlink()
    assert re.search("was lost or replaced|the count is lost", place.reveal(code=1))


# What is scored, and what is not --------------------------------------------------------------------


def test_one_bad_profile_costs_nobody_else_a_score(place: Place) -> None:
    """Junk, another's session, another length: each is named with its reason, the others are scored."""
    other = Place(place.root / "other")
    shutil.copy(other.root / "p1.enc", place.root / "foreign.enc")
    (place.root / "junk\x1b[2J.enc").write_bytes(b"junk")
    write(place.root / "short.json", ([0.0], [1.0]))
    place.encrypt("short")
    told = place.match("foreign.enc", "p1.enc", "junk\x1b[2J.enc", "p2.enc", "short.enc", code=3)
    assert f"{place.root}/p1.enc -> p1\n{place.root}/p2.enc -> p2\n" in told
    assert "foreign.enc refused: It belongs to another key holder's session" in told
    assert "short.enc refused: Expected 3 elements as in the baseline, got 1" in told
    assert "no file of securefl" in told
    assert "\x1b" not in told
    assert ": 2 scores for key holder" in told
    found = json.loads(place.reveal("--json"))["scores"]
    assert list(found) == ["p1", "p2"]
    assert abs(found["p2"] - kl("p2")) < 1e-5


def test_where_none_is_left_nothing_is_written(place: Place) -> None:
    (place.root / "scores.enc").unlink()
    for name in ("p1.enc", "p2.enc"):
        (place.root / name).write_bytes(b"junk")
    told = place.match(code=2)
    assert "p1.enc refused" in told
    assert "p2.enc refused" in told
    assert "no profile is left to match" in told
    assert not (place.root / "scores.enc").exists()


def test_a_swapped_or_renamed_file_is_listed_by_its_label(place: Place) -> None:
    (place.root / "p1.enc").rename(place.root / "x")
    (place.root / "p2.enc").rename(place.root / "p1.enc")
    told = place.match("x", "p1.enc")
    assert f"{place.root}/x -> p1\n{place.root}/p1.enc -> p2\n" in told
    found = json.loads(place.reveal("--json"))["scores"]
    assert abs(found["p1"] - kl("p1")) < 1e-5


@pytest.mark.parametrize("order", [("p1.enc", "p2.enc", "p3.enc"), ("p2.enc", "p3.enc", "p1.enc")])
def test_options_come_from_the_evaluator_or_from_all_and_never_from_the_first(
    place: Place, order: tuple[str, ...]
) -> None:
    write(place.root / "p3.json", BASE)
    place.encrypt("p3")
    place.encrypt("p2", "--profile", "--variant", "mean-only")
    told = place.match(*order, code=2)
    assert told.count("Say which options count") == 3
    assert "p2.enc refused: Expected the same options of all profiles, got variant 'mean-only' here" in told
    told = place.match(*order, more=("--variant", "full"), code=3)
    assert "p2.enc refused: Expected the matched options, got another variant" in told
    assert list(json.loads(place.reveal("--json"))["scores"]) == [n[:2] for n in order if n != "p2.enc"]
    told = place.match(*order, more=("--variant", "mean-only"), code=3)
    assert "p1.enc refused: Expected the matched options, got another variant" in told
    assert list(json.loads(place.reveal("--json"))["scores"]) == ["p2"]
    place.encrypt("p2", "--profile", "--mean-bound", 8)
    assert "another bounds" in place.match(*order, more=("--params", "strong"), code=3)


def test_an_anchor_is_given_to_match_as_to_encrypt(tmp_path: Path) -> None:
    anchor = write(tmp_path / "a.json", ([0.3, 0.0, 0.0], [1.7, 1.0, 1.0]))
    place = Place(tmp_path, "--anchor", str(anchor))
    place.match(more=place.options)
    assert "another anchor" in place.match(more=("--variant", "full"), code=2)


def test_in_python_options_are_given_and_refusals_are_listed(place: Place) -> None:
    keys, server = KeyHolder.generate(openings=10), Evaluator.generate()
    one, base = Profile(np.array([1.0]), np.array([1.0])), Profile(np.array([0.0]), np.array([1.0]))
    compact = Options(parameters="compact")
    sealed = [
        one.encrypt(keys.public, server.public, label=label, options=options)
        for label, options in (("a", None), ("b", compact), ("c", None))
    ]
    with pytest.raises(
        NothingLeft,
        match=r"No profile is left to match\. a: Expected the same options .*'strong'",
    ):
        server.match(keys.public, base, sealed)
    scores = server.match(keys.public, base, sealed, options=Options())
    assert scores.labels == ["a", "c"]
    assert [(no.place, no.label) for no in scores.refused] == [(1, "b")]
    assert list(keys.reveal(scores, server.public).scores) == ["a", "c"]
    with pytest.raises(NothingLeft) as nothing:
        server.match(keys.public, base, sealed[:1], options=compact)
    assert [no.label for no in nothing.value.refused] == ["a"]
    with pytest.raises(NothingLeft):
        server.match(keys.public, base, [])
    with pytest.raises(NothingLeft, match="got 2 of it"):
        server.match(keys.public, base, [sealed[0]] * 2)


def test_labels_and_baselines_must_fit(place: Place) -> None:
    told = place.match("p1.enc", "p1.enc", "p2.enc", code=3)
    assert told.count("Expected each label once, got 2 of it") == 2
    assert "p2.enc -> p2" in told
    write(place.root / "b.json", ([0.0], [1.0]))
    assert "Expected 1 elements as in the baseline, got 3" in place.match(code=2)
    shutil.copy(place.root / "p1.enc", place.root / "b.json")
    assert "b.json: Expected an encrypted-baseline file" in place.match(code=1)


def test_an_encrypted_baseline_with_other_options_is_refused(place: Place) -> None:
    place.encrypt("b", "--baseline", "--mean-bound", 8)
    assert "a baseline that fits the profiles, got b" in place.match(baseline="b.enc", code=1)


# What is said of the values ------------------------------------------------------------------------


def test_floors_and_clips_are_counted_and_said(place: Place) -> None:
    write(place.root / "far.json", ([1000.0, -1000.0, 0.0], [0.0, 1e-9, 9999.0]))
    told = place.encrypt("far")
    assert "3 values lay outside" in told
    assert "2 variances were below 1e-06" in told
    assert "clipped" not in place.encrypt("p1")
    assert "below" not in place.encrypt("p1")
    write(place.root / "b.json", ([0.0, 0.0, 0.0], [1.0, 0.0, 1.0]))
    told = place.match("p1.enc", "p2.enc", more=("--weight-bound", 1e6), code=2)
    for label in ("p1", "p2"):
        place.encrypt(label, "--profile", "--weight-bound", 1e6)
    assert "1 variances were below 1e-06" in place.match()


def test_floors_and_clips_are_counted_in_python() -> None:
    keys, server = KeyHolder.generate(openings=10), Evaluator.generate()
    far = Profile(np.array([1000.0, 0.0]), np.array([0.0, 1.0]))
    sealed = far.encrypt(keys.public, server.public)
    assert (sealed.clipped, sealed.floored) == (1, 1)
    flat = Profile(np.zeros(2), np.array([0.0, 1.0]))
    assert flat.encrypt_baseline(keys.public, server.public, options=LOOSE).floored == 1
    loose = flat.encrypt(keys.public, server.public, options=LOOSE)
    assert server.match(keys.public, flat, [loose]).floored == 1
    near = Profile(np.zeros(2), np.full(2, 1e-6)).encrypt(keys.public, server.public)
    assert (near.clipped, near.floored) == (0, 0)
    assert set(sealed.header) == set(near.header), "the evaluator does not learn it"


@pytest.mark.parametrize("params", ["strong", "compact"])
def test_the_error_to_expect_is_said_before_anything_is_sent(place: Place, params: str) -> None:
    told = [place.encrypt(label, "--profile", "--params", params) for label in CLIENTS]
    (expected,) = {re.findall(r"all 1000 scores of this key within (\S+), except", line)[0] for line in told}
    place.match()
    bound = json.loads(place.reveal("--json"))["error_bound"]
    assert bound <= float(expected) * 1.01 <= 2 * bound


NO_PROFILES = (
    "",
    "[]",
    "{}",
    '{"mean": [1], "variance": [-1]}',
    '{"mean": [1], "variance": [1, 2]}',
    '{"mean": "x", "variance": []}',
    '{"mean": [NaN], "variance": [1]}',
    '{"mean": [1e999], "variance": [1]}',
    '{"mean": [[1]], "variance": [[1]]}',
    '{"mean": ["1"], "variance": ["1"]}',
    '{"mean": [true], "variance": [1]}',
    '{"mean": [1' + "0" * 400 + '], "variance": [1]}',
    "[" * 100_000,
)


@pytest.mark.parametrize("text", NO_PROFILES, ids=range(len(NO_PROFILES)))
def test_profiles_that_are_none_are_refused(place: Place, text: str) -> None:
    (place.root / "p1.json").write_text(text)
    assert "p1.json" in place.encrypt("p1", code=1)


@pytest.mark.parametrize("name", ["p1.enc", "scores.enc"])
@pytest.mark.parametrize("word", ["NaN", "Infinity", "1e999"])
def test_headers_hold_no_numbers_that_are_none(place: Place, name: str, word: str) -> None:
    """They pass Python's JSON, and could not be written again to check a signature."""
    raw = (place.root / name).read_bytes()[:-32]
    forged = raw.replace(b"{", b'{"a":' + word.encode() + b",", 1)
    (place.root / name).write_bytes(forged + hashlib.sha256(forged).digest())
    assert "header" in use(place, name)


def test_a_baseline_outside_the_bounds_is_refused_not_clipped(place: Place) -> None:
    write(place.root / "b.json", ([0.0, 0.0, 0.0], [5000.0, 1.0, 1.0]))
    assert "that lie outside the declared bounds" in place.match(code=1)
    assert "that lie outside the declared bounds" in place.encrypt("b", "--baseline", code=1)


def test_outputs_replace_files_of_their_own_kind_alone(place: Place) -> None:
    keys = ("--public", place.root / "K/public.key", "--evaluator", place.root / "V/evaluator.key")
    for name in ("K/secret.key", "V/evaluator.pub", "b.json"):
        before = (place.root / name).read_bytes()
        more = ("--baseline", place.root / "p1.json", place.root / "p1.enc", "-o", place.root / name)
        assert "Write elsewhere" in call("match", *keys, *more, code=1)
        assert (place.root / name).read_bytes() == before
    more = ("--baseline", place.root / "b.json", place.root / "p1.enc", "-o", place.root / "fifo")
    os.mkfifo(place.root / "fifo")
    assert "Write elsewhere" in call("match", *keys, *more, code=1)


def test_a_lost_count_is_noticed(place: Place) -> None:
    place.reveal()
    (counted,) = (place.root / "K").glob("openings-*.sqlite")
    for suffix in ("", "-wal", "-shm"):
        Path(f"{counted}{suffix}").unlink(missing_ok=True)
    assert "the count is lost" in place.reveal(code=1)


def test_a_key_holder_in_memory_counts_and_answers_again() -> None:
    keys, server = KeyHolder.generate(openings=1), Evaluator.generate()
    one = Profile(np.array([1.0]), np.array([1.0]))
    sealed, base = one.encrypt(keys.public, server.public), Profile(np.array([0.0]), np.array([1.0]))
    scores = server.match(keys.public, base, [sealed])
    assert keys.reveal(scores, server.public) == keys.reveal(scores, server.public)
    again = keys.reveal(server.match(keys.public, base, [sealed]), server.public)
    assert "used up" in again.refused["profile"]


def test_names_that_cannot_be_labels_are_blamed_on_the_name(place: Place) -> None:
    shutil.copy(place.root / "p1.json", place.root / "a\nb.json")
    assert "got 'a\\nb'" in place.encrypt("a\nb", code=1)


def test_mean_only_takes_every_baseline_that_full_takes(tmp_path: Path) -> None:
    place = Place(tmp_path, "--variant", "mean-only")
    write(place.root / "b.json", ([0.0] * 3, [1 / 2000.0] * 3))  # weights of 1000, of at most 1024
    place.match()
    place.reveal("--json")


def test_options_as_a_header_come_back() -> None:
    anchor = profiles.Anchor(np.array([1.0, 2.0]), np.array([0.5, 3.0]))
    header = Options(variant=profiles.Variant.MEAN_ONLY, parameters="compact", anchor=anchor).to_header(2)
    again, length = Options.from_header(json.loads(json.dumps(header)))
    assert (again.to_header(length), length) == (header, 2)
