"""Strict parsing of a TOML table into a dataclass. Errors name the key, the value and the nearest name.

A ConfigError of several lines is several mistakes, a line for each.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, is_dataclass
from difflib import SequenceMatcher
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, cast, get_args, get_origin, get_type_hints

from securefl.core.errors import ConfigError
from securefl.core.lazy import loading
from securefl.core.ranges import Known, Range, Ranged, outside

if TYPE_CHECKING:
    from pydantic import TypeAdapter

T = TypeVar("T")
_WORDS = {
    "a valid integer": "a whole number",
    "a valid number": "a number",
    "a valid array": "a list",
    "a valid string": "text in quotes",
    "a valid boolean": "true or false",
    "an object": "a table in braces",
}
"""The words of TOML for pydantic's names of types."""
_QUOTED: Final = "'([^']+)'"
_NEAR = 0.59
"""A word is suggested only if its likeness exceeds this number."""
_LONGEST: Final = 80
"""The longest text that a remedy quotes."""
_OTHER_WORDS: Final = """
learning_rate: lr eta stepsize
batch_size: batch bs minibatch
rounds: iterations globalepochs
epochs: passes localiterations
seeds: seed randomstate randomseed
clients: users workers parties nodes hospitals silos k
records: samples examples
source: dataset data path file name
target: label labels y
test_share: testsize testsplit testfraction
partition: split distribution noniid
kind: type name architecture arch network model
hidden: layers hiddenlayers units
optimizer: opt
epsilon: eps
delta: failureprobability
budget: privacybudget maxepsilon
clip_norm: clip clipping maxgradnorm l2normclip maxnorm
noise_multiplier: sigma noise noisescale noisestd
sampling_rate: q samplerate
fraction: clientspercentage participation fractionfit c
fraction: clientsperround cohort cohortsize
protocol: algorithm strategy method aggregator
adversaries: trust threat attackers
min_cohort_size: minclients minavailableclients
local: training train client optimizer
study: federation fl experiment general config server
privacy: dp differentialprivacy security secagg encryption
dpsgd: dp differentialprivacy
arm: protocol strategy algorithm
data: dataset
client: user person patient hospital silo participant
record: example sample row item
masked: secagg secaggplus secureaggregation secure smpc mpc mask
pads: encrypted he masked
ckks: he fhe homomorphic encrypted encryption tenseal
clear: plain plaintext none no false
server: aggregator coordinator central
others: clients client
local: ldp client clients
central: cdp server gaussian laplace trusted
add-remove: unbounded addremove
replace-one: bounded substitution substitute replace
inf: none unlimited infinite infinity no never
true: yes on
false: no off
cuda: gpu
lenet5: cnn convnet
mlp: linear logistic logreg dense nn
char_lstm: rnn lstm gru
dirichlet: noniid heterogeneous
cifar10: cifar
fedavg: fedsgd federatedaveraging mean average
"""
"""What newcomers write, behind the words of a study that say the same. A word that is known is no mistake."""


@dataclass
class Mistakes:
    """Collects ConfigErrors, so that a person reads all of them at once. said: their lines."""

    said: list[str] = field(default_factory=list)

    @contextmanager
    def noted(self) -> Iterator[None]:
        """A context that notes a ConfigError in place of raising it."""
        try:
            yield
        except ConfigError as error:
            self.said.extend(str(error).split("\n"))

    def require_none(self) -> None:
        """Raises ConfigError with every mistake that was noted, each once."""
        if self.said:
            raise ConfigError("\n".join(dict.fromkeys(self.said)))


def beneath(place: str, error: Exception) -> ConfigError:
    """The error with a place, such as a file's name, before each of its lines.

    A line that begins with a blank goes on with the one before.
    """
    return ConfigError(
        "\n".join(line if line[:1] == " " else place + line for line in str(error).split("\n"))
    )


def convert(kind: type[T], table: Any, where: str, elsewhere: Mapping[str, str] | None = None) -> T:
    """Return `table` as the frozen dataclass `kind`.

    Args:
        kind: the class.
        table: as TOML has it.
        where: the section, for errors.
        elsewhere: the sections that have a key, for keys that stand in the wrong one.

    Raises:
        ConfigError: a line for each mistake, with its key.
    """
    # Help and hints take words from this module, and no table.
    with loading("pydantic"):
        from pydantic import ValidationError

    if not isinstance(table, dict):
        raise ConfigError(
            f"[{where}] Expected a table, got {table!r}. Write [{where}] on a line of its own, and the keys "
            "below."
        )
    unknown = _unknown_keys(kind, table, where, elsewhere or {})
    text, wrong = _as_json(table, where), dict[str, str]()
    try:
        # Strict JSON takes lists for tuples and words for enums, but no text or truth value for a number.
        found = cast(T, _adapter(cast(Any, kind)).validate_json(text, strict=True))
    except ConfigError as error:
        wrong[""] = str(error)
    except ValidationError as error:
        wrong = _explained(kind, [dict(problem) for problem in error.errors()], table)
    if not wrong and not unknown:
        return found
    if unknown:
        wrong.pop("", None)  # its cause may be the key that is misspelt
    if issubclass(kind, Ranged):
        tops = {*map(_top, wrong)}
        ranges = outside(kind, {key: own for key, own in table.items() if key not in tops})
        if "" in wrong:  # the ranges come first there (`Ranged`)
            wrong[""] = "\n".join(wrong[""].split("\n")[len(ranges) :])
        wrong |= {key: _hinted(told, table[key]) for key, told in ranges.items()}
    placed = {path: str(beneath(f"[{where}] ", ConfigError(told))) for path, told in wrong.items() if told}
    raise ConfigError("\n".join(_in_order(table, placed, unknown)))


def _hinted(told: str, came: Any) -> str:
    """What is told of a word, with the nearest of those in quotes."""
    known = re.findall(_QUOTED, told.partition(", got ")[0])
    return f"{told[:-1]}{near(came, known)}." if isinstance(came, str) else told


@lru_cache(maxsize=256)
def _adapter(kind: Any) -> TypeAdapter[Any]:
    with loading("pydantic"):
        from pydantic import TypeAdapter

    # A sweep reads the same sections for each cell, and it takes 10 ms to make an adapter.
    return TypeAdapter(kind)


def _as_json(table: Mapping[str, Any], where: str) -> str:
    try:
        # TOML has inf, JSON has none: Python writes Infinity, which pydantic's parser accepts.
        return json.dumps(table)
    except TypeError:
        raise ConfigError(f"[{where}] Expected text, numbers and lists, got a date or a time.") from None


def _unknown_keys(
    kind: type[Any], table: Mapping[str, Any], where: str, elsewhere: Mapping[str, str]
) -> dict[str, str]:
    """A sentence for each unknown key, by its path. pydantic would ignore it, and so a misspelt key."""
    found = {}
    for key, value in table.items():
        nested = _dataclass_of(cast(Any, kind), key)
        if key not in kind.__dataclass_fields__:
            found[key] = f"[{where}] Unknown key `{key}`{_home(kind, key, elsewhere)}"
        elif nested is not None and isinstance(value, dict):
            below = _unknown_keys(nested, value, f"{where}.{key}", elsewhere)
            found |= {f"{key}.{name}": sentence for name, sentence in below.items()}
    return found


def _home(kind: type[Any], key: str, elsewhere: Mapping[str, str]) -> str:
    """Where a key belongs that this class does not have, or which one it may be."""
    fields: Mapping[str, Any] = kind.__dataclass_fields__
    if _meant(key, fields) is None:
        for name in fields:
            nested = _dataclass_of(cast(Any, kind), name)
            if nested is not None and key in nested.__dataclass_fields__:
                return f": it belongs into `{name}`. Write {name} = {{ {key} = ... }}."
        if key in elsewhere:
            return f": it belongs under {elsewhere[key]}."
        if (other := _meant(key, elsewhere)) is not None:
            return f": `{other}` belongs under {elsewhere[other]}."
    return f"{near(key, fields)}; known are {', '.join(fields)}."


def _in_order(table: Mapping[str, Any], wrong: Mapping[str, str], unknown: Mapping[str, str]) -> list[str]:
    """The sentences on keys in the order of the table, and then those on missing keys and the whole.

    A key is not missing if a hint at a misspelt one names it.
    """
    places = {key: place for place, key in enumerate(table)}
    hints = " ".join(unknown.values())
    both = {path: said for path, said in wrong.items() if _top(path) in places or f"`{path}`" not in hints}
    both |= unknown
    return [both[path] for path in sorted(both, key=lambda path: places.get(_top(path), len(places)))]


def _top(path: str) -> str:
    return path.partition(".")[0]


@lru_cache(maxsize=1024)
def _dataclass_of(kind: type[Any], key: str) -> type[Any] | None:
    hint = get_type_hints(kind).get(key)
    # In a union such as `Bounded | None`, take the dataclass.
    found = [own for own in (hint, *get_args(hint)) if isinstance(own, type) and is_dataclass(own)]
    return found[0] if len(found) == 1 else None


def _explained(
    kind: type[Any], problems: Sequence[Mapping[str, Any]], table: Mapping[str, Any]
) -> dict[str, str]:
    """Return one sentence for each key, by its path. The types of a union share one sentence."""
    by_key: dict[str, list[Mapping[str, Any]]] = {}
    for problem in problems:
        by_key.setdefault(_path(kind, problem["loc"]), []).append(problem)
    return {path: _sentence(kind, path, own, table) for path, own in by_key.items()}


def _sentence(
    kind: type[Any], path: str, problems: Sequence[Mapping[str, Any]], table: Mapping[str, Any]
) -> str:
    match problems[0]["type"]:
        case "missing" | "missing_keyword_only_argument":
            return f"Missing key `{path}`; add it{_wanted(kind, path)}."
        case "value_error":
            return str(beneath(f"{path}: " if path else "", problems[0]["ctx"]["error"]))
    wanted = dict.fromkeys(p["msg"].removeprefix("Input should be ") for p in problems)
    expected = " or ".join(_WORDS.get(words, words) for words in wanted)
    came = problems[0]["input"]
    words = re.findall(_QUOTED, expected)
    words += ["true", "false"] if "true" in expected else ["inf"] if "a valid number" in wanted else []
    hint = near(came, words) if isinstance(came, str) else ""
    return f"`{path}`: Expected {expected}, got {came!r}{hint}.{_remedy(kind, path, came, table)}"


def _wanted(kind: type[Any], path: str) -> str:
    """What a missing key takes, if its type names words or a range."""
    *outer, key = path.split(".")
    for name in outer:
        kind = cast(Any, _dataclass_of(cast(Any, kind), name))
    takes = _takes(get_type_hints(kind, include_extras=True)[key])
    return f": {takes}" if takes else ""


def _takes(hint: Any, whole: bool = False) -> str:
    match hint:
        case Known():
            return " or ".join(map(json.dumps, hint.names()))
        case Range():
            return f"a {'whole ' * whole}number in {hint}"
    own = get_args(hint)
    if get_origin(hint) is Literal:
        return " or ".join(map(json.dumps, own))
    takes = next(filter(None, (_takes(one, int in own) for one in own)), "")
    if get_origin(hint) is tuple:
        return f"a list of {takes}" if takes else "a list, or []"
    return takes


def _remedy(kind: type[Any], path: str, came: Any, table: Mapping[str, Any]) -> str:
    """What to write, if the value is right in brackets, in braces or without quotes. It was tried."""
    *outer, key = path.split(".")
    for name in outer:
        kind, table = cast(Any, _dataclass_of(cast(Any, kind), name)), table[name]
    if table.get(key) != came or len(text := json.dumps(came)) > _LONGEST:  # one value of a list
        return ""
    nested, ways = _dataclass_of(cast(Any, kind), key), [f"[{text}]"]
    if nested is not None:
        ways.append(f"{{ {next(iter(nested.__dataclass_fields__))} = {text} }}")
    if isinstance(came, str) and came.isprintable():
        ways += [came, f"[{came}]"]
    if isinstance(came, float) and came.is_integer():
        ways.append(f"{came:.0f}")
    for way in ways:
        with suppress(ConfigError, ValueError, TypeError):
            found = json.dumps(tomllib.loads(f"x = {way}")["x"])
            _adapter(get_type_hints(kind)[key]).validate_json(found, strict=True)
            return f" Write {key} = {way}."
    return ""


def _path(kind: type[Any] | None, location: Sequence[str | int]) -> str:
    """Return the key's dotted name, without the union branches that pydantic adds."""
    names: list[str] = []
    for part in location:
        if kind is None or part not in kind.__dataclass_fields__:
            break
        names.append(str(part))
        kind = _dataclass_of(cast(Any, kind), names[-1])
    return ".".join(names)


def near(word: str, words: Iterable[str]) -> str:
    """Return a hint at the nearest of these words, in brackets, or an empty text if none is near."""
    known = [*words]
    found = [(likeness, own) for own in known if (likeness := _likeness(word, own)) > _NEAR]
    # Ties go to the first in the alphabet, so that the hint is the same in every process.
    likeness, best = min(found, key=lambda pair: (-pair[0], pair[1]), default=(0.0, None))
    hint = best if likeness > 1 else _meant(word, known) or best
    return f" (did you mean `{hint}`?)" if hint else ""


def _meant(word: str, words: Iterable[str]) -> str | None:
    """The word among these for which newcomers write another one."""
    plain = _plain(word)
    meant = re.findall(rf"(?m)^(\S+):.* {re.escape(plain)}\b", _OTHER_WORDS) if plain else []
    return next((own for own in meant if own in words), None)


def _plain(word: str) -> str:
    return "".join(filter(str.isalnum, word.casefold()))


def _likeness(one: str, other: str) -> float:
    """Return the fraction of common letters, 0 to 1, plus 1 if one word begins with the other."""
    one, other = _plain(one), _plain(other)
    family = bool(one and other) and (one.startswith(other) or other.startswith(one))
    share = SequenceMatcher(None, one, other).ratio()
    return share + family if share > _NEAR else 0.0
