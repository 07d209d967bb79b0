"""The same federation by NVFlare's `collab` calls: sites train, parties protect, the server gets sums."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from nvflare.collab import collab

DEADLINE, ENTERING = 300.0, 10.0
"""Seconds that a wave may take, training included, and a wave of requests to enter."""


@collab.publish
def relay(request: bytes) -> bytes:
    """The reply of the party beside this site; empty for none. The party may order the site to train."""
    from securefl.deployment import send
    from securefl.errors import RemoteProtocolError

    folder = Path(collab.get_app_prop("folder"))
    socket = folder / "parties" / collab.site_name / "run" / "party.sock"
    records = folder / "records" / f"{collab.site_name}.npz"
    # NVFlare sends the text of an exception to the server, and no such text leaves here.
    try:
        return send(socket, request, timeout=DEADLINE, compute=partial(computed, records))
    except RemoteProtocolError as error:
        print(f"{collab.site_name}: no answer: {error}")
        return b""


def computed(records: Path, order: Any) -> Any:
    """Train as the party orders. The result goes to the party alone; None if training failed."""
    import numpy as np
    from task import trained

    from securefl.deployment.messages import Computed

    try:
        model, loss, count = trained(order.broadcast, records)
    except Exception as error:  # its text stays in the site's own log
        print(f"training failed: {error}")
        return None
    return Computed(values=model.astype(np.float64), metrics=np.array([loss]), examples=float(count))


@collab.main
def run() -> None:
    """Average over the sites, whose names are those of the parties, and write the final model."""
    import numpy as np
    from task import ROUNDS, start
    from terms import PLAN, UPDATES

    from securefl.core.release import SERVER
    from securefl.deployment import RemoteEngine, ServerSide, keys, roster
    from securefl.storage.journal import Journal
    from securefl.storage.own_record import OwnRecord

    folder = Path(collab.get_app_prop("folder"))
    server = folder / "parties" / SERVER
    sites = {site.name: site for site in collab.clients}
    with closing(Journal(server / "journal.sqlite")) as journal:
        record = OwnRecord(SERVER, journal, keys.read(server, SERVER))
        pinned = roster.read(server / "roster.jsonl")
        side = ServerSide(plan=PLAN, pinned=pinned, record=record, study="NVFlare")
        engine = RemoteEngine(side, UPDATES.spec(PLAN), UPDATES.digest, partial(exchange, sites))
        model = start()
        for number in range(1, ROUNDS + 1):
            model = averaged(engine, model, number)
    np.save(folder / "secure.npy", model)


def averaged(engine: Any, model: Any, number: int) -> Any:
    """The model after a round: plus the mean of the sites' updates, which is all that the server learns."""
    import numpy as np
    from task import SITES
    from terms import PLAN, UPDATES

    from securefl.algorithm import CohortQuery, Sum
    from securefl.deployment.updates import UPDATE

    engine.enter()
    size = UPDATES.size(PLAN, UPDATE, len(model))
    query = CohortQuery(
        cohort=tuple(range(len(SITES))), broadcast=model, sums=(Sum(UPDATES.spec(PLAN)[UPDATE], size),)
    )
    answers, _ = engine.query(query, engine.at(number))
    if not answers.survivors:
        raise RuntimeError(f"Round {number}: no sum was opened. The parties' logs and `diary` say why.")
    mean = UPDATES.read(PLAN, UPDATE, answers.totals[UPDATE], len(model))
    print(
        f"round {number}: {len(answers.survivors)} sites with {mean.examples} records, loss "
        f"{mean.metrics['loss']:.3f} before it, of sums alone",
        flush=True,
    )
    return (model + mean.update).astype(np.float32)


def exchange(sites: Mapping[str, Any], requests: Mapping[str, bytes], entering: bool) -> dict[str, bytes]:
    """Give each party its request. Returns the replies that came in time, by party."""
    asked = {name: data for name, data in requests.items() if name in sites}
    # One call for each: a call of NVFlare's to a group gives all of it the same arguments.
    with ThreadPoolExecutor(max(1, len(asked))) as pool:
        seconds = ENTERING if entering else DEADLINE
        calls = {name: pool.submit(sites[name](timeout=seconds).relay, data) for name, data in asked.items()}
        replies = {name: call.result() for name, call in calls.items()}
    # A call that failed returns its exception.
    return {name: reply for name, reply in replies.items() if isinstance(reply, bytes) and reply}
