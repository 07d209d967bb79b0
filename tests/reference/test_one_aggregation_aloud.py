"""What is played aloud is what the machines say, byte for byte."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from reference.one_aggregation_aloud import play
from support.every import every
from support.tiny_secagg import aggregate, agreement, assert_exact, identity, integers, pinned

from securefl.core.messages import client_name
from securefl.core.wire import decode
from securefl.secagg import Vector, centred
from securefl.secagg.messages import Advertise, Consistent, MaskedInput, Shares, Unmask, from_clients
from securefl.secagg.packing import unpack
from securefl.secagg.policy import parameters

DROPPED = 2


def content(vector: Vector, message: Any) -> tuple[str, Any]:
    """The round of a machine's message, and what it says, as the reference has it."""
    match message:
        case Advertise():
            return "advertise", vars(message)
        case Shares():
            return "share", vars(message)
        case MaskedInput(releases=(one,)):
            return "mask", (unpack(one.numbers, vector.length, vector.bits).tolist(), message.signature)
        case Consistent():
            return "sign", message.signature
        case Unmask():
            return "unmask", [share.raw for share in message.shares]
    raise AssertionError(message)


def plainly(step: str, said: Any) -> Any:
    match step:
        case "advertise" | "share":
            return vars(said)
        case "mask":
            masked, signature = said
            return masked.tolist(), signature
        case "unmask":
            return list(said.values())
    return said


@every(("clients", "bits"), [(4, 20), (5, 64), (60, 32)])
def test_the_machines_say_the_same_and_find_the_same_sum(clients: int, bits: int) -> None:
    """Sixty clients have a sparse graph."""
    vector = Vector(name="update", length=7, bits=bits, bound=1000)
    chosen = parameters(clients, 0.0, 0.25, "active")
    assert chosen.complete == (clients < 60)
    agreed = agreement(clients, vectors=(vector,), chosen=chosen)
    heard: dict[str, dict[int, Any]] = {}

    def listening(sender: str, to: str, data: bytes) -> bytes:
        if not sender.startswith("client"):
            return data
        message = decode(data, agreed.header, from_clients(agreed), sender)
        step, said = content(vector, message)
        if sender == client_name(DROPPED) and step == "mask":
            return b""
        heard.setdefault(step, {})[agreed.roster.numbers[sender]] = said
        return data

    outcome = aggregate(agreed, tamper=listening)
    assert_exact(agreed, outcome.server)
    names = [member.name for member in pinned(clients).members]
    secrets = outcome.host.journal.secrets(names, agreed.header.session, agreed.header.round)
    total, said = play(
        agreed,
        [identity(k) for k in range(clients)],
        [secret for secret in secrets if secret is not None],
        [integers(k, vector) for k in range(clients)],
        DROPPED,
        lambda sentence: None,
    )
    told = {step: {k: plainly(step, one) for k, one in of.items()} for step, of in said.items()}
    assert told == heard
    summed = centred(outcome.server.totals["update"], bits)  # type: ignore[union-attr]
    np.testing.assert_array_equal(total, summed)


def test_the_story_is_told_and_ends_with_the_sum() -> None:
    """As a program, by itself."""
    script = Path(__file__).with_name("one_aggregation_aloud.py")
    done = subprocess.run([sys.executable, "-W", "error", script], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    starts = [line[:1] for line in lines if line[0] != " "]
    assert starts == sorted(starts)
    assert set(starts) == set("01234")
    assert lines[-1].endswith("the sum over [0, 1, 3] is [4, 40, -4].")
