"""Import of a user's code that a study names as `module:name`.

The code comes from an installed package, or from the study's own folder. The module's file is located before
any of it runs. Symbolic links are followed, and a file in any other place is refused. After the import,
`sys.path` and `sys.modules` are restored, so that two folders can each have a module `helpers`.

Every module that comes from the study's folder passes the rule of `storage.owned` as it is read. Cached
bytecode is not read: another user could have written `__pycache__`. What is installed is trusted, as Python
itself trusts it.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.metadata import EntryPoint, distributions, packages_distributions
from importlib.util import find_spec
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from securefl.core.errors import ConfigError, DataError, SecureFLError
from securefl.core.reading import near
from securefl.storage import owned

_NAMED: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


@dataclass(frozen=True, kw_only=True)
class Namer:
    """Who names a study's code: files, or none if it is the caller.

    trusted: the paths of --trust-code. Code in them, and files that name code, may be what others can write.
    known: why --trust-code was needed to read the files.
    """

    files: tuple[Path, ...] = ()
    trusted: tuple[Path, ...] = ()
    known: tuple[str, ...] = ()

    def require(self, *code: Path) -> tuple[str, ...]:
        """Raises ConfigError if others can write one of the files, or of those with `code`. The reasons why
        they are trusted, if they are."""
        found = (owned.require(file, self.trusted) for file in (*self.files, *code))
        return tuple(dict.fromkeys(filter(None, (*self.known, *found))))


CALLER: Final = Namer()


@dataclass(frozen=True, kw_only=True)
class CodePlace:
    """The place of named code.

    name: `module:name`. file: the module's file, without links. sha256: of its content, in hex. own: the
    study's folder if the module is in it, or None for an installed package. namer: who names the code.
    trusted: why --trust-code was needed, in sentences.
    """

    name: str
    file: Path
    sha256: str
    own: Path | None
    namer: Namer = CALLER
    trusted: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.name} in {self.file} (SHA-256 {self.sha256[:12]})"


def names_code(word: str) -> bool:
    """Whether a word has the form `module:name`."""
    return _NAMED.fullmatch(word) is not None


def located(name: str, home: Path | None, namer: Namer = CALLER) -> CodePlace:
    """Find `module:name` without running the module.

    home: the study's folder. If it is None, only installed packages are searched. Raises ConfigError for a
    module that is in neither place, whose link leads out of the folder, or that has the name of another
    installed module, and if others can write the module in the folder, or a file that names it.
    """
    if not names_code(name):
        raise ConfigError(
            f"Expected code as `module:name`, got {name!r}. Write the module, a colon, and a name in it."
        )
    module = name.partition(":")[0]
    own = None if home is None else _in_folder(module, home.resolve())
    if own is not None and _top(module) in sys.stdlib_module_names:
        raise ConfigError(
            f"Expected module {module!r} in {own} to have a name of its own, got that of a module of Python. "
            "Give the file another name."
        )
    installed = _installed(module)
    if own is not None and installed is not None and installed != own:
        raise ConfigError(
            f"Expected module {module!r} in {own} to have a name of its own, got that of the installed "
            f"{installed}. Give the file another name."
        )
    file = installed or own
    if file is None:
        where, put = "an installed package", "save the study as a file beside the module"
        if home is not None:
            where, put = f"{where} or below {home.resolve()}", "put the module into that folder"
        raise ConfigError(
            f"Expected the module of {name!r} in {where}, got none{_elsewhere(module)}. A study runs code "
            f"from no other place: {put}, or install its package."
        )
    folder = None if installed or home is None else home.resolve()
    trusted = namer.require(*(() if folder is None else (file,)))
    sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
    return CodePlace(name=name, file=file, sha256=sha256, own=folder, namer=namer, trusted=trusted)


def place_of(point: EntryPoint) -> CodePlace:
    """Find the code of an entry point, as `located` does."""
    return located(point.value.replace(" ", ""), None)


def load(place: CodePlace) -> Any:
    """Import the module and return the object with this name.

    The module may import further modules of the study's folder. Raises ConfigError if the import fails or the
    module has no such name.
    """
    module, _, name = place.name.partition(":")
    with importable(place):
        # Without a message, a user would not know why the study did not run.
        with running(None, f"Expected to import {place.name} from {place.file}", "Mend the module."):
            found: Any = importlib.import_module(module)
        for part in name.split("."):
            if not hasattr(found, part):
                raise ConfigError(
                    f"Expected {name!r} in {place.file}, got none{near(part, dir(found))}. Check the name "
                    "behind the colon."
                )
            found = getattr(found, part)
    return found


@contextmanager
def importable(place: CodePlace) -> Iterator[None]:
    """Let imports find the modules of the study's folder while the context lasts.

    Call loaded code inside it: its functions may import further modules.
    """
    with nullcontext() if place.own is None else _in_front(place.own, place):
        yield


@contextmanager
def running(
    place: CodePlace | None,
    expected: str,
    remedy: str = "Mend it.",
    *,
    error: type[ConfigError | DataError] = ConfigError,
) -> Iterator[None]:
    """A context in which a person's own code runs: `importable`, and its errors become one with this text.

    The code may raise any error, and call `sys.exit` as scripts do. Errors of this package pass.
    """
    try:
        with nullcontext() if place is None else importable(place):
            yield
    except SecureFLError:
        raise
    except (Exception, SystemExit) as why:
        raise error(f"{expected}, got {type(why).__name__}: {why}. {remedy}") from why


class _OwnedModules:
    """An import hook: modules of the study's folder are read by the rule, others as ever."""

    def __init__(self, folder: Path, trusted: Sequence[Path]) -> None:
        self._inside, self._trusted = os.path.join(folder, ""), trusted

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target)
        if spec is None:
            return None
        for place in (spec.origin, *(spec.submodule_search_locations or ())):
            if place is not None and f"{place}/".startswith(self._inside):
                owned.require(Path(place), self._trusted)
                if place == spec.origin and isinstance(spec.loader, SourceFileLoader):
                    spec.loader = _OwnedSource(name, place, self._trusted)
        return spec


class _OwnedSource(SourceFileLoader):
    """Loads a module from its source alone."""

    def __init__(self, name: str, path: str, trusted: Sequence[Path]) -> None:
        super().__init__(name, path)
        self._trusted = trusted

    def get_data(self, path: str) -> bytes:
        return owned.read(Path(path), self._trusted)

    def get_code(self, name: str) -> CodeType:
        code: CodeType = self.source_to_code(self.get_data(self.path), self.path)
        return code


@contextmanager
def _in_front(folder: Path, place: CodePlace) -> Iterator[None]:
    top = _top(place.name.partition(":")[0])
    path, hook = list(sys.path), _OwnedModules(folder, place.namer.trusted)
    # A loaded module of that name may be from another folder, or an older state of an edited file.
    aside = {key: sys.modules.pop(key) for key in list(sys.modules) if _top(key) == top}
    before = {_top(key) for key in sys.modules}
    sys.path.insert(0, str(folder))
    sys.meta_path.insert(sys.meta_path.index(PathFinder), hook)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path[:] = path
        sys.meta_path.remove(hook)
        for key in [key for key in sys.modules if _top(key) not in before]:
            if _lies_in(sys.modules[key], folder / _top(key)):
                del sys.modules[key]
        sys.modules.update(aside)


def _lies_in(module: ModuleType | None, home: Path) -> bool:
    """Whether a module is `home`.py, or belongs to the package `home`."""
    files = (getattr(module, "__file__", None), *getattr(module, "__path__", ()))
    return any(f"{file}/".startswith((f"{home}.", f"{home}/")) for file in files if file)


def _top(module: str) -> str:
    return module.partition(".")[0]


def _in_folder(module: str, home: Path) -> Path | None:
    """The module's file below this folder, or None. Raises ConfigError if a link takes it elsewhere."""
    *packages, last = module.split(".")
    folder = home
    for package in packages:
        folder = _inside(folder / package, home)
        if not folder.is_dir():
            return None
        _inside(folder / "__init__.py", home)
    for file in (folder / last / "__init__.py", folder / f"{last}.py"):
        if file.is_file():
            return _inside(file, home)
    return None


def _inside(path: Path, home: Path) -> Path:
    real = path.resolve()
    if not real.is_relative_to(home):
        raise ConfigError(
            f"Expected a study's code below {home}, got {path}, which leads to {real}. A study runs no code "
            "outside of its folder: copy it there, or install it as a package."
        )
    return real


def _installed(module: str) -> Path | None:
    """The file of a module of an installed distribution, or None. No code runs."""
    # The file comes first, since a list of all distributions takes long and most modules have no such file.
    if (file := _file_of(module)) is None:
        return None
    names = _distributions_of(tuple(sys.path)).get(_top(module), [])
    for found in distributions():
        if found.metadata["Name"] not in names:
            continue
        roots = [Path(str(found.locate_file(""))).resolve()]
        linked = json.loads(found.read_text("direct_url.json") or "{}")
        if linked.get("dir_info", {}).get("editable"):
            roots.append(Path(unquote(urlsplit(linked["url"]).path)).resolve())
        if any(file.is_relative_to(root) for root in roots):
            return file
    return None


@lru_cache(maxsize=8)
def _distributions_of(path: tuple[str, ...]) -> Mapping[str, list[str]]:
    """The distributions that bring each top-level name, read once for a search path: it takes 0.2 s."""
    return packages_distributions()


def _file_of(module: str) -> Path | None:
    """The file that an import of this module would load now, or None. Its parents are not run."""
    first, *rest = module.split(".")
    try:
        spec: ModuleSpec | None = find_spec(first)
    except ValueError:  # a module object that a program made itself has no spec
        return None
    name = first
    for part in rest:
        if spec is None or spec.submodule_search_locations is None:
            return None
        name = f"{name}.{part}"
        spec = PathFinder.find_spec(name, list(spec.submodule_search_locations))
    return Path(spec.origin).resolve() if spec is not None and spec.has_location and spec.origin else None


def _elsewhere(module: str) -> str:
    """The place in which an import would find the module, in words."""
    file = _file_of(module)
    return f" (an import would take {file}, which is in neither place)" if file is not None else ""
