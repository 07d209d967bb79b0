"""A study over NVFlare's `collab` calls: the server asks each site's relay, and a relay its party."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from nvflare.collab import collab

DEADLINE = 60.0
"""Seconds that a wave may take."""


@collab.publish
def relay(request: bytes) -> bytes:
    """The reply of the party beside this site; empty for none."""
    from securefl.deployment import send
    from securefl.errors import RemoteProtocolError

    socket = Path(collab.get_app_prop("parties")) / collab.site_name / "run" / "party.sock"
    # NVFlare sends the text of an exception to the server, and no such text leaves here.
    try:
        return send(socket, request, timeout=DEADLINE)
    except RemoteProtocolError as error:
        print(f"{collab.site_name}: no answer: {error}")
        return b""


@collab.main
def run() -> None:
    """Run the study of the server's folder over the sites, whose names are those of the parties."""
    from securefl.deployment import run_deployed

    parties, out = Path(collab.get_app_prop("parties")), Path(collab.get_app_prop("out"))
    sites = {site.name: site for site in collab.clients}
    _, page = run_deployed(parties / "server", out, partial(exchange, sites), tell=finished)
    print(f"report {page}", flush=True)


def exchange(sites: Mapping[str, Any], requests: Mapping[str, bytes]) -> dict[str, bytes]:
    """Give each party its request. Returns the replies that came in time, by party."""
    asked = {name: data for name, data in requests.items() if name in sites}
    # One call for each: a call of NVFlare's to a group gives all of it the same arguments.
    with ThreadPoolExecutor(max(1, len(asked))) as pool:
        calls = {name: pool.submit(sites[name](timeout=DEADLINE).relay, data) for name, data in asked.items()}
        replies = {name: call.result() for name, call in calls.items()}
    # A call that failed returns its exception.
    return {name: reply for name, reply in replies.items() if isinstance(reply, bytes) and reply}


def finished(arm: Any, seed: int, record: Mapping[str, Any]) -> None:
    """Say what the server knows of a round."""
    print(
        f"round {record['round']}: answered {record['answered']}, accuracy {record['accuracy']:.3f}",
        flush=True,
    )
