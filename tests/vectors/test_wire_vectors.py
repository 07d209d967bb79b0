"""Frozen bytes of the wire format: a change that breaks deployed parties turns these red.

`python tests/vectors/test_wire_vectors.py` writes wire/messages.json anew; do so only together with a new
format or kind version, and mark the change in CHANGELOG.md.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.every import every

from securefl.core.errors import RemoteProtocolError
from securefl.core.keys import Commitment, Share, Signature
from securefl.core.messages import Broadcast, OpenReply, OpenRequest, Order
from securefl.core.wire import Header, Limit, decode, encode
from securefl.sums.encrypted.messages import SumRequest
from securefl.sums.two_server.messages import PadReply, PadRequest

FILE = Path(__file__).parent / "wire" / "messages.json"
HEADER = Header(bytes(range(32)), 7, 1, 2)
KINDS: dict[str, type[Any]] = {
    "broadcast": Broadcast,
    "order": Order,
    "open-request": OpenRequest,
    "open-reply": OpenReply,
    "sum-request": SumRequest,
    "pad-request": PadRequest,
    "pad-reply": PadReply,
}
MESSAGES: dict[str, Any] = {
    "broadcast": Broadcast(
        model=np.array([1.0, -2.5, 0.0], dtype=np.float32),
        names=("anchor_centre",),
        arrays=(np.array([0.5, 3.0]),),
    ),
    "order": Order(
        wants=("update", "profile"),
        sums=("count",),
        initial=0,
        number=3,
        again=2,
        cohort=bytes(range(32)),
        draws=0,
        whole=3,
        most=2,
        records=1437,
        lengths=(5,),
    ),
    "open-request": OpenRequest(items=(b"\x01\x02\x03", b"")),
    "open-reply": OpenReply(items=(b"\xff",)),
    "sum-request": SumRequest(
        items=(b"\x01\x02",),
        task=bytes(range(32)),
        members=(0, 2),
        inputs=(Commitment(b"\x03" * 32), Commitment(b"\x04" * 32)),
        signatures=(Signature(b"\x05" * 64), Signature(b"\x06" * 64)),
    ),
    "pad-request": PadRequest(
        task=bytes(range(32)),
        members=(1,),
        boxes=(Share(b"\x01" * 80), Share(b"\x02" * 80)),
        inputs=(Commitment(b"\x03" * 32),),
        signatures=(Signature(b"\x05" * 64),),
    ),
    "pad-reply": PadReply(request=bytes(range(32)), bad=(3, 7), pads=b"\x01\x02"),
}


def defects(good: bytes) -> dict[str, bytes]:
    """Named ways to spoil an encoded order: offsets are those of the format's description in `core.wire`."""
    kind_at, version_at, session_at = 5, 10, 12
    return {
        "another_magic": b"XXX\x08" + good[4:],
        "another_format_version": good[:3] + b"\x02" + good[4:],
        "another_kind": good[:kind_at] + b"ordeR" + good[kind_at + 5 :],
        "another_kind_version": good[:version_at] + b"\x02\x00" + good[version_at + 2 :],
        "another_session": good[:session_at] + b"\xff" + good[session_at + 1 :],
        "another_round": good[: session_at + 32] + b"\x08" + good[session_at + 33 :],
        "another_attempt": good[: session_at + 36] + b"\x02" + good[session_at + 37 :],
        "another_stage": good[: session_at + 38] + b"\x03" + good[session_at + 39 :],
        "truncated_header": good[:20],
        "truncated_field": good[:-1],
        "trailing_byte": good + b"\x00",
        "huge_count": good[: session_at + 40] + b"\xff\xff\xff\xff" + good[session_at + 44 :],
        "text_not_utf8": good.replace(b"update", b"\xff\xfedate"),
        "empty": b"",
    }


def test_the_bytes_are_what_they_were() -> None:
    stored = json.loads(FILE.read_text())["positive"]
    assert {name: encode(HEADER, body).hex() for name, body in MESSAGES.items()} == stored


@every("name", KINDS)
def test_a_frozen_message_decodes(name: str) -> None:
    data = bytes.fromhex(json.loads(FILE.read_text())["positive"][name])
    assert encode(HEADER, decode(data, HEADER, {KINDS[name]: Limit(1000, 99)}, "server")) == data


@every("defect", defects(bytes(200)))
def test_a_named_defect_is_refused(defect: str) -> None:
    stored = json.loads(FILE.read_text())
    data = bytes.fromhex(stored["negative"][defect])
    assert data != bytes.fromhex(stored["positive"]["order"])
    with pytest.raises(RemoteProtocolError, match="server in phase decode"):
        decode(data, HEADER, {Order: Limit(1000, 99)}, "server")


if __name__ == "__main__":
    made = {
        "generator": "python tests/vectors/test_wire_vectors.py",
        "header": {"session": HEADER.session.hex(), "round": 7, "attempt": 1, "stage": 2},
        "positive": {name: encode(HEADER, body).hex() for name, body in MESSAGES.items()},
        "negative": {name: data.hex() for name, data in defects(encode(HEADER, MESSAGES["order"])).items()},
    }
    FILE.write_text(json.dumps(made, indent=1) + "\n")
