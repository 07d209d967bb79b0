"""The command `keygen`."""

from __future__ import annotations

from pathlib import Path

import click

from securefl.core.errors import ConfigError


@click.command(epilog="Example:  securefl keygen --role key-holder --out K")
@click.option("--role", type=click.Choice(["key-holder", "evaluator"]), required=True, help="Whose keys.")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), required=True, help="A new folder.")
@click.option("--openings", default=1000, show_default=True, help="Scores the key will open at most.")
def keygen(role: str, out: Path, openings: int) -> None:
    """Make the keys of one session: secrets that only their owner can read, and public files.

    key-holder: OUT/secret.key, OUT/public.key. evaluator: OUT/evaluator.key, OUT/evaluator.pub. Compare the
    fingerprints with the people you send the public files to.

    --openings limits how many scores are read, and noise is sized for it. It does not protect the key from an
    evaluator that breaks the protocol: a few hundred openings of its own making read the whole secret key.
    """
    from securefl.matching import document
    from securefl.matching.evaluator import Evaluator
    from securefl.matching.key_holder import KeyHolder

    secret, public = (
        ("secret.key", "public.key") if role == "key-holder" else ("evaluator.key", "evaluator.pub")
    )
    # Both are looked for before one is made: half a pair beside half of another would fit nobody.
    for name in (secret, public):
        if (out / name).exists():
            raise ConfigError(
                f"Expected a folder without keys, got {out / name}, which exists. Choose another folder: "
                "keys are never overwritten."
            )
    if role == "key-holder":
        keys = KeyHolder.generate(openings=openings)
        files, fingerprint = (keys.to_document(), keys.public.to_document()), keys.public.fingerprint
    else:
        evaluator = Evaluator.generate()
        files, fingerprint = evaluator.to_documents(), evaluator.public.fingerprint
    # The counts and the ledger of the key are made here later. None but the owner may put others there.
    out.mkdir(parents=True, exist_ok=True, mode=0o700)
    document.write(out / secret, files[0], secret=True)
    document.write(out / public, files[1])
    click.echo(f"{out / public}: fingerprint {fingerprint}")
