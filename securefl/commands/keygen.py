"""The command `keygen`: makes the keys of a matching session."""

from __future__ import annotations

import os.path
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from securefl.commands.choices import FILE
from securefl.commands.printing import echo
from securefl.core.errors import ConfigError
from securefl.storage.inputs import shown

if TYPE_CHECKING:
    from securefl.matching.document import Document

_FILES = {
    "key-holder": ("secret.key", "public.key"),
    "evaluator": ("evaluator.key", "evaluator.pub"),
    "client": ("client.key", "client.pub"),
}


@click.command(epilog="Example:  securefl keygen --role key-holder --out K")
@click.option("--role", type=click.Choice(list(_FILES)), required=True, help="The keys' owner.")
@click.option("--out", type=FILE, required=True, help="A new folder.")
@click.option("--openings", default=1000, show_default=True, help="The most scores that the key opens.")
@click.option(
    "--params",
    type=click.Choice(["pads", "strong"]),
    help="Default pads: no homomorphic key, for --params pads and pads-128. strong: keys for every --params.",
)
def keygen(role: str, out: Path, openings: int, params: Literal["pads", "strong"] | None) -> None:
    """Make the keys of one session: secrets that only their owner can read, and public files.

    key-holder: OUT/secret.key, OUT/public.key. evaluator: OUT/evaluator.key, OUT/evaluator.pub. client:
    OUT/client.key, OUT/client.pub, which --params strong and compact need. Compare
    the fingerprints with the people you send the public files to. If the command fails, it leaves no file. If
    it is killed between its two files, the same command makes the missing public file of the secret one.

    --openings limits the number of scores, and sets the size of the flooding noise. It does not protect the
    key of an encrypted baseline from an evaluator that breaks the protocol: with a few hundred openings of
    forged requests, it reads the whole secret key. With a declared baseline, openings are checked: an
    evaluator alone does not get the key, and one that has a client's key does. Keys of --params pads have no
    such part, and no noise.
    """
    from securefl.matching import document
    from securefl.storage.files import filling

    if params is not None and role != "key-holder":
        raise click.UsageError(f"Expected --params for the role key-holder alone, got {role}. Leave it out.")
    if out.exists() and not out.is_dir():
        raise ConfigError(f"Expected a folder or nothing at {shown(out)}, got a file. Choose another path.")
    secret, public = (out / name for name in _FILES[role])
    _require_no_pair(secret, public)
    # The key's counts and ledger are created here later, so only the owner may write into the folder. If a
    # write fails, or the fingerprint cannot be told, half a pair would be left: all of it goes.
    with filling(out):
        # Once more, in the lock: since the first check, another process may have made its pair.
        _require_no_pair(secret, public)
        half = secret if os.path.lexists(secret) else None
        kept, told, fingerprint = _pair(role, half, openings, params or "pads")
        if half is None:
            document.write(secret, kept, secret=True)
        else:
            echo(f"{shown(half)} was alone, as a killed keygen leaves it: it is kept.", err=True)
        document.write(public, told)
        echo(f"{shown(public)}: fingerprint {fingerprint}")


def _require_no_pair(secret: Path, public: Path) -> None:
    """Raises ConfigError if the public file is there. The secret one alone is half of a pair."""
    if os.path.lexists(public):
        found = secret if os.path.lexists(secret) else public
        raise ConfigError(
            f"Expected a folder without keys, got {shown(found)}, which exists. Choose another folder: keys "
            "are never overwritten."
        )


def _pair(
    role: str, half: Path | None, openings: int, params: Literal["pads", "strong"]
) -> tuple[Document, Document, str]:
    """The secret and the public file of new keys, or of the secret file `half`, and their fingerprint."""
    from securefl.matching import document
    from securefl.matching.clients import ClientKey
    from securefl.matching.evaluator import Evaluator
    from securefl.matching.key_holder import KeyHolder

    if role != "key-holder":
        cls: type[Evaluator | ClientKey] = Evaluator if role == "evaluator" else ClientKey
        own = cls.generate() if half is None else document.load(half, cls)
        return (*own.to_documents(), own.public.fingerprint)
    if half is None:
        keys = KeyHolder.generate(openings=openings, parameters=params)
    else:
        keys = document.load(half, KeyHolder)
    found = keys.public.openings, "strong" if keys.public.raw else "pads"
    if found != (openings, params):
        raise ConfigError(
            f"Expected the options of {half and shown(half)}, which is half of a pair: --openings "
            f"{found[0]} --params {found[1]}. Repeat them, or choose another folder."
        )
    return keys.to_document(), keys.public.to_document(), keys.public.fingerprint
