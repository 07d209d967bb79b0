"""The options of an arm: those of an installed protocol, or of a person's own, which a study names.

A person's own protocol is `module:name` in the study's text, or an object from Python. It is a dataclass with
`build`, as installed protocols have it, or a function (or class) that makes an algorithm from the problem and
the arm's keys. Its code is loaded when an algorithm is built, and not when the study is read.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol, cast

from securefl.algorithm.clients import Algorithm
from securefl.core.errors import ConfigError
from securefl.core.installed import entry_points
from securefl.core.reading import convert, near
from securefl.storage.own_code import CodePlace, Namer, load, located, names_code, running
from securefl.training.task import Problem


class ProtocolOptions(Protocol):
    """The options of a protocol, which build its algorithm. An arm's TOML table is read into such a class.

    The entry points of the group `securefl.protocols` name these classes.
    """

    def build(self, problem: Problem) -> Algorithm: ...


@dataclass(frozen=True, kw_only=True)
class OwnProtocol:
    """An arm's keys for a protocol of a person's own.

    name: `module:name`. keys: of the arm's table. where: the arm's place, for errors. home, namer: of the
    study (see `Study`). brought: the protocol from Python; None if the study's text names it.
    """

    name: str
    keys: Mapping[str, Any] = field(hash=False)
    where: str
    home: Path | None
    namer: Namer = field(compare=False)
    brought: Any = None

    @property
    def place(self) -> CodePlace | None:
        """The place of its code, which does not run; None if it came from Python. Errors as for `located`."""
        return None if self.brought is not None else located(self.name, self.home, self.namer)

    @cached_property
    def made(self) -> ProtocolOptions:
        """The options. Raises ConfigError if the code is no protocol, or does not take the arm's keys."""
        found = self.brought if (place := self.place) is None else load(place)
        fields = getattr(found, "__dataclass_fields__", {}) if isinstance(found, type) else {}
        if fields and hasattr(found, "build"):
            # An attribute that is no field would keep its value, whatever the arm says.
            if bare := [key for key in self.keys if key not in fields and hasattr(found, key)]:
                raise ConfigError(
                    f"[{self.where}] Expected `{bare[0]}` as a field of {self.name}, got an attribute of the "
                    f"class. Give it a type, and write @dataclass(frozen=True, kw_only=True) above the class."
                )
            return cast(ProtocolOptions, convert(found, self.keys, self.where))
        lacks = bool(fields) and "problem" not in fields
        if lacks or not callable(found):
            came = "a dataclass without it" if lacks else type(found).__name__
            raise ConfigError(
                f"[{self.where}] Expected {self.name} as a dataclass with `build`, or as a function of the "
                f"problem, got {came}. Write `class Mine(Options)` with `build(self, problem)`, or `def "
                "mine(problem, fraction)`."
            )
        try:
            inspect.signature(found).bind(None, **self.keys)
        except TypeError as error:
            raise ConfigError(
                f"[{self.where}] Expected keys that {self.name}{inspect.signature(found)} takes behind the "
                f"problem, got {', '.join(self.keys) or 'none'}: {error}."
            ) from None
        return SimpleNamespace(**self.keys, build=partial(found, **self.keys))

    def build(self, problem: Problem) -> Algorithm:
        """The algorithm. Raises ConfigError if the code fails."""
        made, place = self.made, self.place
        with running(place, f"Expected {self.name} to build an algorithm"):
            return made.build(problem)


def name_of(brought: Any) -> str:
    """`module:name` of an object from Python, or of its class if it has no name itself."""
    kind = brought if hasattr(brought, "__qualname__") else type(brought)
    return f"{kind.__module__}:{kind.__qualname__}"


def kind_of(protocol: Any, where: str, home: Path | None, namer: Namer, brought: Any) -> tuple[Any, Any]:
    """The name of an arm's protocol, and what its keys are read into.

    protocol: the key of the arm; "" if the table has none. Then the protocol is the one from Python.

    Returns the class of an installed protocol's options, or `OwnProtocol` without its keys; None behind a key
    that is no text. Raises ConfigError for an unknown protocol, and for a text from Python.
    """
    brought = brought if protocol == "" else None
    if isinstance(brought, str):
        raise ConfigError(
            f"[{where}] Expected `protocol=` as a dataclass with `build`, or as a function, got the text "
            f"{brought!r}. Write `protocol = {json.dumps(brought)}` in the arm."
        )
    if brought is not None:
        protocol = name_of(brought)
    if not isinstance(protocol, str):
        return protocol, None
    if not protocol:
        raise ConfigError(
            f"[{where}] Missing key `protocol`. Name it, or pass `protocol=` with the study from Python."
        )
    if brought is not None or names_code(protocol):
        return protocol, partial(
            OwnProtocol, name=protocol, where=where, home=home, namer=namer, brought=brought
        )
    points = {point.name: point for point in entry_points(group="securefl.protocols")}
    if protocol not in points:
        raise ConfigError(
            f"[{where}] Unknown protocol {protocol!r}{near(protocol, points)}; known are "
            f"{', '.join(sorted(points))}, and one of your own as `module:name`."
        )
    # Only the one that is named: another package's protocol may be slow to import, or broken.
    return protocol, points[protocol].load()
