"""Files of a matching, made by the commands as three people would run them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from click.testing import CliRunner

from securefl.commands.main import cli
from securefl.core.errors import SecureFLError
from securefl.dp.moments import MeanVariance
from securefl.matching.profiles import divergence

CLIENTS = {
    "p1": ([0.1, 0.2, -1.0], [1.0, 2.0, 0.5]),
    "p2": ([1.0, 0.0, 0.0], [1.0, 1.0, 1.0]),
}
BASE = ([0.0, 0.1, 0.0], [1.0, 1.5, 1.0])


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
    own, base = (MeanVariance(np.array(m), np.array(s), 1) for m, s in (CLIENTS[label], BASE))
    return divergence(own, base)


class Place:
    """A folder with keys, profiles and the options of one matching."""

    def __init__(self, root: Path, *options: str, openings: int = 1000) -> None:
        self.root, self.options = root, options
        keys = ("--params", "strong", "--openings", openings)
        call("keygen", "--role", "key-holder", *keys, "--out", root / "K")
        call("keygen", "--role", "evaluator", "--out", root / "V")
        write(root / "b.json", BASE)
        for label, values in CLIENTS.items():
            write(root / f"{label}.json", values)
            self.encrypt(label)

    def declare(self, *flags: object, code: int = 0) -> str:
        """The evaluator declares b.json with these options."""
        keys = ("--public", self.root / "K/public.key", "--evaluator", self.root / "V/evaluator.key")
        out = ("-o", self.root / "declared.pub")
        return call("declare", *keys, "--baseline", self.root / "b.json", *flags, *out, code=code)

    def signing(self, label: str, *flags: object) -> tuple[object, ...]:
        """The flags of a client that signs: its key, and a declaration of these options."""
        own = self.root / f"C-{label}"
        if not own.exists():
            call("keygen", "--role", "client", "--out", own)
        self.declare(*flags)
        return ("--declared", self.root / "declared.pub", "--key", own / "client.key")

    def encrypt(self, label: str, kind: str = "--profile", *more: object, code: int = 0) -> str:
        keys = ("--public", self.root / "K/public.key", "--evaluator", self.root / "V/evaluator.pub")
        path, flags = self.root / f"{label}.json", (*self.options, *more)
        # Ciphertexts of these are scored with a declared baseline alone.
        if {"strong", "compact"} & set(flags) and kind == "--profile" and not code:
            flags = self.signing(label, *flags)
        return call("encrypt", *keys, kind, path, "-o", self.root / f"{label}.enc", *flags, code=code)

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
        given = [word for path in sorted(self.root.glob("C-*/client.pub")) for word in ("--client", path)]
        return call("reveal", *keys, *given, self.root / "scores.enc", *more, code=code)


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
