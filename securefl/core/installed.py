"""Installed distributions: what they add to this package, their versions, and the extras of this one."""

from __future__ import annotations

import platform
import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache, lru_cache
from importlib import metadata
from importlib.metadata import EntryPoint, PackageNotFoundError, version
from typing import Any, Final

from securefl.core.errors import ConfigError

_VERSIONED: Final = (
    *("securefl", "numpy", "torch", "tenseal"),
    *("dp-accounting", "scikit-learn", "scipy", "pandas"),
)


def entry_points(*, group: str) -> tuple[EntryPoint, ...]:
    """The entry points of a group, in the order of `sys.path`.

    The metadata of all distributions is read once for a search path: it takes 15 ms, and a plan asks for
    several groups. A distribution that is installed while the process runs is seen by the next process.
    """
    return _group(tuple(sys.path), group)


@lru_cache(maxsize=64)
def _group(path: tuple[str, ...], group: str) -> tuple[EntryPoint, ...]:
    """path: what the metadata is read from, a part of the caches' keys."""
    return tuple(_all(path).select(group=group))


@lru_cache(maxsize=8)
def _all(path: tuple[str, ...]) -> Any:
    """All groups."""
    # `EntryPoints` from Python 3.12 on, and before it a class of its own; both have `select`.
    return metadata.entry_points()


@contextmanager
def needing(extra: str, work: str) -> Iterator[None]:
    """A block that imports packages of one of this package's extras.

    The remedy names the packages. So it holds in a checkout and from a wheel:
    no index needs to have securefl.

    Args:
        extra: the extra's name in pyproject.toml.
        work: what needs them, such as "to read Parquet".

    Raises:
        ConfigError: one of them is not installed.
    """
    try:
        yield
    except ImportError as error:
        packages = [
            line.partition(";")[0].strip()
            for line in metadata.requires("securefl") or ()
            if re.search(rf"""extra == ['"]{extra}['"]$""", line)
        ]
        # The metadata of an older install may lack the extra.
        remedy = (
            f"Install them: pip install {shlex.join(packages)}"
            if packages
            else "The installed securefl has no such extra: install this release of it again."
        )
        raise ConfigError(
            f"Expected the packages of the extra {extra} {work}, got: {error}. {remedy}"
        ) from None


@cache  # what is loaded stays as it is, whatever is installed meanwhile
def versions() -> Mapping[str, str]:
    """Versions of Python and of the packages that figures depend on."""
    found = {"python": platform.python_version()}
    for name in _VERSIONED:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found
