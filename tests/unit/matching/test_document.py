"""What a file of a matching may hold: options by name, labels, sizes, and keys that are somebody's."""

from __future__ import annotations

import hashlib
import shlex
import subprocess
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.every import every

from securefl.core.errors import ConfigError, CryptoError, DataError, RemoteProtocolError
from securefl.core.keys import PublicKey, Signature
from securefl.matching import (
    ClientKey,
    Evaluator,
    EvaluatorPublic,
    KeyHolder,
    Options,
    Profile,
    PublicKeys,
    Scores,
    Sealed,
)
from securefl.matching.document import LIMITS, Document, read, write
from securefl.matching.keys import evaluator_statement, pads_statement, session_of, statement
from securefl.matching.options import RINGS

ONE = Profile(np.array([0.5, 0.0]), np.array([1.0, 2.0]), 77)
KEYS, SERVER = KeyHolder.generate(openings=10, parameters="strong"), Evaluator.generate()
IDENTITY = PublicKey((1).to_bytes(32, "little"))
FORGED = Signature((1).to_bytes(32, "little") + bytes(32))
"""Under the identity as a key, the signature of every message."""


def sealed(**header: Any) -> Sealed:
    """A profile whose client wrote these into its header, and sealed it so."""
    own = ONE.encrypt(KEYS.public, SERVER.public, label="p1")
    return Sealed(own.kind, {**own.header, **header}, own.body)


@every("anchor", [{}, [], "", 0, False, ..., 7, {"centre": [0, 0]}, {"centre": [0], "scale": [1]}])
def test_an_anchor_that_is_none_is_refused_by_name(anchor: object) -> None:
    header = {**Options().to_header(2), "anchor": anchor}
    if anchor is ...:
        del header["anchor"]
    with pytest.raises(DataError, match="anchor in the file"):
        Options.from_header(header)
    if not isinstance(anchor, type(...)):
        with pytest.raises(DataError, match="Expected anchor"):
            SERVER.match(KEYS.public, ONE, [sealed(anchor=anchor)])
        with pytest.raises(ConfigError, match="`anchor` as Anchor"):
            Options(anchor=anchor)  # type: ignore[arg-type]


@every(
    ("name", "value"),
    [
        ("length", True),
        ("length", 2.0),
        ("parameters", "weak"),
        ("variant", None),
        ("bounds", {}),
        ("bounds", {"mean": "64", "variance_low": 0.1, "variance_high": 1.0, "weight": 1.0}),
        ("bounds", {"mean": 0, "variance_low": 0.1, "variance_high": 1.0, "weight": 1.0}),
        ("anchor", {"centre": ["0", "0"], "scale": ["1", "1"]}),
        ("anchor", {"centre": [0, 0], "scale": [1, 0]}),
    ],
)
def test_options_are_refused_by_name_and_shown_without_escapes(name: str, value: object) -> None:
    with pytest.raises(DataError, match=f"Expected {name} in the file's header"):
        Options.from_header({**Options().to_header(2), name: value})
    with pytest.raises(DataError) as refusal:
        Options.from_header({**Options().to_header(2), name: "\x1b[2J" * 1000})
    assert str(refusal.value).isprintable()
    assert len(str(refusal.value)) < 300


# Labels ------------------------------------------------------------------------------------------


@every(
    "labels",
    [
        ["\x1b[31mred"],
        ["a\nb"],
        ["\u202egnp.exe"],
        ["\ud800"],
        [""],
        ["x" * 201],
        [7],
        [["p1"]],
        [],
        "p1",
        None,
        ["p1", "P1"],
    ],
)
def test_labels_that_an_evaluator_signed_are_checked_before_they_are_shown(labels: object) -> None:
    made = SERVER.match(KEYS.public, ONE, [ONE.encrypt(KEYS.public, SERVER.public, label="p1")])
    content = Document("encrypted-scores", {**made.header, "labels": labels}, made.body[:-64])
    signed = Scores(content.header, content.body + SERVER.signing.sign(content.signed_part()).raw)
    with pytest.raises(DataError, match="each once and printable") as refusal:
        KEYS.reveal(signed, SERVER.public)
    assert str(refusal.value).isprintable()


# Sizes -------------------------------------------------------------------------------------------


def test_limits_hold_what_is_written() -> None:
    own = ONE.encrypt(KEYS.public, SERVER.public)
    scores = SERVER.match(KEYS.public, ONE, [own])
    for content in (
        KEYS.to_document(),
        KEYS.public.to_document(),
        *SERVER.to_documents(),
        own.to_document(),
        scores.to_document(),
    ):
        assert 1.5 * len(content.to_bytes()) < LIMITS[content.kind]
    assert 1000 * len(scores.body) < LIMITS["encrypted-scores"], "the openings of a key by default"


@every("kind", LIMITS)
def test_a_gibibyte_behind_a_valid_first_line_is_not_read(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "large"
    with path.open("wb") as target:
        target.write(Document(kind, {}, b"").to_bytes())
        target.truncate(2**30)  # of zeros, which take no space
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=r"large: .*1,073,741,824"):
            read(path, kind)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


@every("kind", LIMITS)
def test_a_key_that_others_can_read_is_refused_until_they_cannot(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    write(path, Document(kind, {}, b""), secret=kind in {"secret-key", "evaluator-key", "client-key"})
    read(path, kind)
    for mode in (0o640, 0o604):
        path.chmod(mode)
        if not kind.endswith("-key") or kind == "public-key":
            read(path, kind)
            continue
        with pytest.raises(DataError, match=f"mode 0{mode:o}") as caught:
            read(path, kind)
        subprocess.run(shlex.split(str(caught.value).rpartition(": ")[2]), check=True)
        read(path, kind)


@every("item", [b"[],", b"{},", b"1,"])
def test_a_header_of_many_values_is_refused_before_one_is_made(item: bytes, tmp_path: Path) -> None:
    path, first = tmp_path / "e", Document("encrypted-profile", {}, b"").to_bytes().split(b"\n")[0] + b"\n"
    raw = first + b'{"label":[' + item * (2**22 // len(item)) + b"0]}\n"
    path.write_bytes(raw + hashlib.sha256(raw).digest())
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=r"header .*16,777,216 bytes"):
            read(path, "encrypted-profile")
        assert tracemalloc.get_traced_memory()[1] < 4 * len(raw)
    finally:
        tracemalloc.stop()


def test_the_longest_anchor_that_a_header_holds_is_read(tmp_path: Path) -> None:
    value = 0.1234567890123456
    anchor = {"centre": [value] * 400_000, "scale": [value] * 400_000}
    write(tmp_path / "e", Document("encrypted-profile", {"anchor": anchor}, b""))
    assert read(tmp_path / "e", "encrypted-profile").header["anchor"] == anchor


def test_what_could_not_be_read_again_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "e"
    with pytest.raises(DataError, match="at most 4,096 bytes"):
        write(path, Document("evaluator-key", {}, bytes(4096)))
    assert not path.exists()


def test_a_file_is_held_once_while_it_is_read(tmp_path: Path) -> None:
    path, size = tmp_path / "s", 2**26
    write(path, Document("encrypted-scores", {}, bytes(size)))
    tracemalloc.start()
    try:
        assert len(read(path, "encrypted-scores").body) == size
        assert tracemalloc.get_traced_memory()[1] < 1.2 * size
    finally:
        tracemalloc.stop()


# Keys --------------------------------------------------------------------------------------------


def test_fingerprints_have_128_bits() -> None:
    for fingerprint in (
        KEYS.public.fingerprint,
        SERVER.public.fingerprint,
        SERVER.public.signing.fingerprint(),
    ):
        assert len(bytes.fromhex(fingerprint)) == 16
    assert KEYS.public.session.startswith(KEYS.public.fingerprint)


def test_signing_keys_of_small_order_are_refused_wherever_they_come_in() -> None:
    """Under the identity everybody signs: keys, caps and scores."""
    with pytest.raises(DataError, match="small order"):
        PublicKeys(KEYS.public.raw, IDENTITY, 10**9, FORGED, KEYS.public.pads)
    public = EvaluatorPublic(SERVER.public.sealing, IDENTITY)
    with pytest.raises(DataError, match="small order"):
        EvaluatorPublic.from_document(public.to_document(FORGED))
    own = ONE.encrypt(KEYS.public, SERVER.public)
    made = SERVER.match(KEYS.public, ONE, [own])
    with pytest.raises(DataError, match="small order"):
        KEYS.reveal(Scores({**made.header, "evaluator": public.fingerprint}, bytes(100) + FORGED.raw), public)


def test_a_sealing_key_of_small_order_is_refused() -> None:
    content = EvaluatorPublic(PublicKey(bytes(32)), SERVER.public.signing)
    signed = SERVER.signing.sign(evaluator_statement(bytes(32) + SERVER.public.signing.raw))
    read_back = EvaluatorPublic.from_document(content.to_document(signed))
    with pytest.raises(CryptoError, match="cannot be agreed with"):
        ONE.encrypt(KEYS.public, read_back)


@every("half", ["first", "second"])
@every("which", ["strong", "compact", "strong-encrypted"])
def test_a_transparent_public_key_is_refused_though_its_holder_signed_it(half: str, which: str) -> None:
    """A ciphertext under it would show the profile to the evaluator."""
    raw, options = KEYS.public.raw, Options(parameters=which)  # type: ignore[arg-type]
    if options.checked:  # which takes signed ciphertexts alone
        options = replace(options, declared="0" * 64)
    parameters = RINGS[options.parameters]
    key = KEYS.public.of(parameters).key.raw
    at, size = raw.index(key), len(key) // 2
    start = at if half == "first" else at + size
    spoilt = raw[:start] + bytes(size) + raw[start + size :]
    signed, own = KEYS.signing.sign, KEYS.public.agreement.raw
    pads = own + signed(pads_statement(session_of(KEYS.public.signing, spoilt, 10), own)).raw
    public = PublicKeys(spoilt, KEYS.public.signing, 10, signed(statement(spoilt, 10)), pads)
    with pytest.raises(RemoteProtocolError, match="transparent"):
        ONE.encrypt(public, SERVER.public, options=options, own=ClientKey.generate())


def test_a_public_header_says_nothing_of_the_records() -> None:
    """Not even how many there are: the same header and length for 1 and for 10^9 of them."""
    few, many = (
        Profile(ONE.mean, ONE.variance, count).encrypt(KEYS.public, SERVER.public, label="p1")
        for count in (1, 10**9)
    )
    assert few.header == many.header
    assert len(few.to_document().to_bytes()) == len(many.to_document().to_bytes())
    assert set(few.header) == {
        "session",
        "evaluator",
        "label",
        "length",
        "variant",
        "parameters",
        "bounds",
        "anchor",
    }
    baseline = ONE.encrypt_baseline(
        KEYS.public, SERVER.public, options=Options(parameters="strong-encrypted")
    )
    assert set(baseline.header) == set(few.header)
    scores = SERVER.match(KEYS.public, ONE, [few])
    assert set(scores.header) == {*few.header, "labels"} - {"label"}
