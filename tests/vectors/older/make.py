"""Writes one file of each format with the code of a checkout, as an archive.

    git worktree add OLD COMMIT
    PYTHONPATH=OLD:OLD/tests python tests/vectors/older/make.py tests/vectors/older/COMMIT.tar.xz

    cd tests/vectors/releases
    export PYTHONPATH=../../..:../..
    python ../older/make.py VERSION.tar.xz --whole
    python ../older/make.py VERSION.sessions.tar.xz --sessions
    python ../older/make.py VERSION.json --notes

That checkout's own commands make everything. A release has a second archive, of parties in the middle of a
session, and notes of what its own readers find in both (`support.archived`).

Of a long document of a matching only the head is kept: its first line has the version. An archive of a
release has those of one matching whole, since later versions read them, and features, which had no version
before. Pages and pictures have no version, and are left out. So are tables, but not of a release.
"""

from __future__ import annotations

import json
import os
import sys
import tarfile
import tomllib
from contextlib import nullcontext, suppress
from importlib import metadata
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

HEAD = 2**10
LEFT_OUT = {".html", ".png", ".svg", ".lock", ".sqlite-shm", ".sqlite-wal"}
TABLES = {".csv", ".parquet", ".txt"}


def of_the_checkout() -> None:
    """Find entry points of the older checkout, not those that are installed."""
    import securefl

    home = Path(securefl.__file__).parents[1]
    told = tomllib.loads((home / "pyproject.toml").read_text())["project"]["entry-points"]
    points = [metadata.EntryPoint(*own, group) for group, found in told.items() for own in found.items()]
    installed = metadata.entry_points

    def entry_points(**wanted: str) -> metadata.EntryPoints:
        ours = [one for one in points if one.group == wanted.get("group")]
        return metadata.EntryPoints(ours) if ours else installed(**wanted)

    metadata.entry_points = entry_points  # type: ignore[assignment]


def call(*words: object) -> None:
    from click.testing import CliRunner

    from securefl.commands.main import cli

    ended = CliRunner().invoke(cli, [str(word) for word in words])
    if ended.exception is not None:
        raise SystemExit(f"{words}: {ended.exception!r} {ended.output}")


def runs(root: Path) -> None:
    """A run with a shared ledger, its exported model, and a sweep of one cell."""
    from support.tiny_study import text

    arm = '[[arm]]\nname = "x"\nprotocol = "fedlog"\nclip = { kind = "unit-l2" }\n'
    study = text(arm, rounds=1, clients=4, non_private="[]")
    study = study.replace('noise = "none"', 'noise = "local"\nepsilon = 8.0\nledger = "shared.sqlite"')
    study = study.replace('["server", "key-holder", "others"]', '["server", "others"]')
    study = study.replace("budget = inf", "budget = 20.0")
    study = study.replace('source = "digits"', 'source = "digits"\nholdout = 0.2')
    (root / "study.toml").write_text(study)
    call("run", root / "study.toml", "--out", root / "run")
    call("export", root / "run", "-o", root / "model.safetensors")
    swept = study.replace('ledger = "shared.sqlite"\n', "").replace("epsilon = 8.0\n", "")
    (root / "sweep.toml").write_text(swept + '[sweep.grid]\n"privacy.epsilon" = [8.0]\n')
    call("sweep", root / "sweep.toml", "--out", root / "sweep")


def parties(root: Path) -> None:
    """The folder of a client that is enrolled and pinned, its counter, the roster, and a request to it."""
    from support.party_folders import CLEAR, enrolled, made

    from securefl.deployment import keys, pinning, plan_file
    from securefl.deployment.messages import Enter, encode_envelope

    root.mkdir()
    enrolled(root)
    of, server = made(CLEAR), keys.read(root / "server", "server")
    pinned, _ = pinning.pinned_of(root / "server", plan_file.read(root / "server"))
    enter = Enter.of(of.plan, "tiny", of.work, pinned, bytes(32), server)
    (root / "enter.bin").write_bytes(encode_envelope(enter))


def matching(root: Path, *options: str) -> None:
    """Keys, a declaration, profiles, scores, and the records of key holder and evaluator."""
    from support.matching_place import Place

    root.mkdir()
    place = Place(root, *options)
    if not (root / "declared.pub").exists():
        place.declare()
    place.match()
    place.reveal()


def summing(root: Path) -> None:
    """The ledger of `masked_sum`, and the names of its clients."""
    import numpy as np

    import securefl

    values = {f"c{number}": np.zeros(2) for number in range(4)}
    root.mkdir()
    trust = {"corrupt": 0.0, "min_honest": 2, "max_client_weight": 0.5}
    securefl.masked_sum(values, bound=1.0, **trust, ledger=root / "ledger.sqlite", delta=1e-5)


NETWORK = """
from torch import nn


class Doubled(nn.Module):
    def forward(self, x):
        return 2 * x
"""


def features(root: Path) -> None:
    """Features of eight records by a network of one's own, and the cache that keeps them."""
    import numpy as np

    root.mkdir()
    (root / "doubled.py").write_text(NETWORK)
    np.save(root / "records-x.npy", np.arange(16, dtype=np.float32).reshape(8, 2))
    np.save(root / "records-y.npy", np.arange(8) % 2)
    os.environ["XDG_CACHE_HOME"] = str(root)
    os.chdir(root)
    call("features", "records-x.npy", "--network", "doubled:Doubled", "--out", "features.npz")


def session(root: Path) -> None:
    """Folders of all parties after three of four rounds, the server's run, and what they asked of journals.

    Under a sum of two servers, the key holder draws noise that is correlated over rounds, and each client
    keeps a part of its model. That of a round is on disk once the client has seen a later one.
    """
    from support.archived import CALLS, noting, others, plain
    from support.coordinated import federation
    from support.party_folders import enrolled
    from support.private_studies import client_level

    from securefl.study.interruption import Interrupted

    root.mkdir()
    spaced = {"noise": '"key-holder"', "sum": '"two-server"', "separation": "2", "bands": "2"}
    spaced |= {"adversaries": '["server", "others"]', "dropout": "0.0", "corrupt": "0.0"}
    study = client_level("lg_fedavg", rounds=4, more="fraction = 0.5\n", **spaced).text
    enrolled(root, study)
    with noting(root) as calls, federation(root, study) as own:

        class Stop:
            finishing = nullcontext

            def check(self) -> None:
                if len(own.records) == 3:
                    raise Interrupted(15)

        with suppress(Interrupted):
            own.coordinate(root / "run", stop=Stop())
        for _ in range(2):
            own.up["client-0000"](b"no request")
    (root / CALLS).write_text(json.dumps(plain([*others(calls), *calls])))


def kept(root: Path) -> None:
    """Two simulated arms of two rounds under masks: clients that keep state, and weights by counts."""
    from support.archived import CALLS, noting, others, plain
    from support.hidden_studies import hidden
    from support.tiny_study import run

    from securefl.study.config import parse

    arms = '[[arm]]\nname = "x"\nprotocol = "lg_fedavg"\naccepts_kept_state = true\n'
    arms += '[[arm]]\nname = "counts"\nprotocol = "fedavg"\nfraction = 1.0\naggregation = "full"\n'
    study = parse(hidden("masked", arms, clients=5, rounds=2))
    with noting(root) as calls:
        for arm in study.arms:
            run(study, root, arm=arm)
    (root / CALLS).write_text(json.dumps(plain([*others(calls), *calls])))


def notes(target: Path) -> None:
    """What the readers find in both archives of a release, and the version of its formats."""
    from support.archived import RELEASED, of_release, unpacked

    from securefl.core.formats import VERSION

    with TemporaryDirectory() as at:
        root = Path(at).resolve()
        for archive in sorted(target.parent.glob(f"{target.stem}.*tar.xz")):
            unpacked(archive, root)
        found = {name: of_release(root, name) for name in RELEASED}
    lines = [f"{json.dumps(name)}: {json.dumps(each, indent=1)}" for name, each in sorted(found.items())]
    written = ",\n".join(lines)
    target.write_text(f'{{"version": {VERSION},\n"found": {{\n{written}\n}}}}\n')


def wanted(path: Path, whole: bool) -> bool:
    """Whether a file, by its path below the folder, has a version or is needed beside one that has."""
    if path.suffix in LEFT_OUT or (not whole and path.suffix in TABLES):
        return False
    twins = {"server", "client-0001", "client-0002", "state"}
    again = not whole and path.is_relative_to("sweep/cells") and "arms" in path.parts
    return path.name not in (".lock", "home.txt") and not twins & {*path.parts} and not again


def wanted_of_session(path: Path) -> bool:
    """Whether a run goes on without a file: pages and tables are written anew."""
    return path.suffix not in LEFT_OUT | {".csv", ".parquet"} and path.name not in (
        ".lock",
        "home.txt",
        "README.txt",
    )


def main(target: Path, how: str = "") -> None:
    of_the_checkout()
    if how == "--notes":
        notes(target)
        return
    whole, sessions = how == "--whole", how == "--sessions"
    with TemporaryDirectory() as at:
        root = Path(at).resolve()
        os.environ["XDG_STATE_HOME"] = os.environ["XDG_CACHE_HOME"] = str(root / "state")
        if sessions:
            session(root / "session")
            kept(root / "kept")
        else:
            runs(root)
            parties(root / "parties")
            matching(root / "pads", "--params", "pads")
            matching(root / "compact", "--params", "compact")
            summing(root / "summing")
        if whole:
            features(root / "features")
        with tarfile.open(target, "w:xz", preset=9) as archive:
            for path in sorted(root.rglob("*")):
                own = path.relative_to(root)
                if path.is_file() and (wanted_of_session(own) if sessions else wanted(own, whole)):
                    content = path.read_bytes()
                    headed = not (whole or sessions) or path.is_relative_to(root / "pads" / "K")
                    if headed and content.startswith(b"securefl "):
                        content = content[:HEAD]
                    inside = tarfile.TarInfo(str(path.relative_to(root)))
                    inside.size, inside.mode = len(content), 0o600
                    archive.addfile(inside, BytesIO(content))


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), *sys.argv[2:])
