"""An auditor of whole studies: it runs two neighbouring data sets many times, and tells them apart.

    findings = audit(Pair(text=text, one=one, other=other), runs=6)

Both sides run under the same keys (`observed_runs`), each key being an independent trial. Eight
distinguishers look at what the adversary of the told epsilon sees. The server sees its messages, and every
opened sum and number; a key holder sees its messages; others see what the server says to clients, and every
opened sum, from which all models follow.

    start      whether the study runs at all on both data sets
    silence    who sent what to whom, in which round and stage
    lengths    how many bytes each message had
    public     orders, weights, cohorts, public arrays: what is broadcast beside the model
    constants  values that no noise moves, and their types and shapes
    last bits  the parts of opened sums that are below their grid, where noise on the grid cannot reach
    reuse      noise of two rounds that is one noise
    values     how far the releases are apart, in deviations of their noise

The first six hold what this package promises: nothing but noised values depends on records. So under one key
they must be equal, and a difference has p = 0. An honest study has none, whatever chance does.

`values` is a test. If the difference d of the two sides is the same under every key, the noise is additive.
The releases are then Gaussians whose means are ||d|| apart. The noise's deviation s is estimated from the
residuals of all keys and coordinates. If the told epsilon is right, ||d|| / s is at most mu, the Gaussian-DP
parameter of that epsilon at delta (Dong, Roth and Su 2019), and the residuals' sum of squares is chi-square
distributed. If d varies, the sides are compared along a line that half of the keys chose, by a noncentral t
test on the other half. Both p-values are upper bounds if the noise is normal. The larger the d, the smaller
p: a record that moves others is found in a handful of runs, and noise that lacks a tenth in some dozens.

False alarms: `holm` rejects among all p-values of all studies and distinguishers at once, so that one honest
grid in 1 / LEVEL is red at all (LEVEL = 1e-3).

By hand: `PYTHONPATH=tests python -m support.auditor [first [last]]` prints a table of the grid's studies.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import exp, inf, isfinite, sqrt
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr

from securefl.core.errors import ConfigError
from securefl.core.release import KEY_HOLDER, OTHERS, PARTIES, SERVER
from support.observed_runs import Records, Seen, Sent, observed

Floats = NDArray[np.float64]
LEVEL: Final = 1e-3
"""The chance that an honest grid is red, of whatever size."""
_SAME: Final = 0.02
"""Differences are one difference if they vary by less than this part of the noise's deviation."""
_ALIKE: Final = 0.5
"""Noise of two rounds may correlate this much: a later round is trained on what an earlier one released."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What one distinguisher says of one study against one party.

    told: epsilon of the run. bound: the epsilon that the runs show; infinite where no noise hides the
    difference. p: the chance of this, or more, if what was told is true.
    """

    study: str
    party: str
    distinguisher: str
    told: float
    bound: float
    p: float
    why: str = ""


@dataclass(frozen=True, kw_only=True, eq=False)
class Pair:
    """A study and two neighbouring data sets.

    text: the study. delta: its own. model: a model of one's own. broadcast: what a server sends in place of
    its model, if it lies.
    """

    text: str
    one: Records
    other: Records
    name: str = "study"
    delta: float = 1e-3
    model: Callable[..., Any] | None = None
    broadcast: Callable[[Sent], Sent] | None = None


def audit(pair: Pair, *, runs: int, measures: bool = True) -> list[Finding]:
    """All distinguishers on one pair of neighbours, against each party to whom a finite epsilon is told.

    runs: keys, with a run of each side under each, 2 or more. measures: as in `observed`. Raises ConfigError
    for a study that is refused, and ValueError for fewer than 2 runs.
    """
    if runs < 2:
        raise ValueError(f"Expected two keys or more, got {runs}: under one, all that is noised is constant.")
    seen = []
    for number in range(runs):
        key = b"audit %d" % number
        one, other = (
            observed(pair.text, side, model=pair.model, key=key, measures=measures, broadcast=pair.broadcast)
            for side in (pair.one, pair.other)
        )
        if one.refused and other.refused:
            raise ConfigError(one.began)
        seen.append((one, other))
    return [found for party in PARTIES for found in _against(party, seen, pair)]


def tried(pair: Pair, *, runs: int, measures: bool = True) -> list[Finding]:
    """The same; nothing where the study is refused."""
    try:
        return audit(pair, runs=runs, measures=measures)
    except ConfigError:
        return []


def holm(findings: Sequence[Finding], level: float = LEVEL) -> list[Finding]:
    """The findings that are false claims, at this chance that an honest family has any (Holm 1979)."""
    red = []
    for place, found in enumerate(sorted(findings, key=lambda own: own.p)):
        if found.p > level / (len(findings) - place):
            break
        red.append(found)
    return red


def _against(party: str, pairs: Sequence[tuple[Seen, Seen]], of: Pair) -> Iterator[Finding]:
    began = {(bool(a.began), bool(b.began)) for a, b in pairs}
    told = max((max(a.told.get(party, 0.0), b.told.get(party, 0.0)) for a, b in pairs), default=0.0)

    def finding(what: str, why: str = "", bound: float = inf, p: float = 0.0) -> Finding:
        if not why:
            bound, p = 0.0, 1.0
        return Finding(study=of.name, party=party, distinguisher=what, told=told, bound=bound, p=p, why=why)

    if began == {(True, True)}:
        return
    if began != {(False, False)}:
        if isfinite(told):
            yield finding("start", next(a.began or b.began for a, b in pairs))
        return
    if not isfinite(told):
        return
    yield finding("silence", _differing(pairs, lambda seen: _events(seen, party), once=True))
    yield finding("lengths", _differing(pairs, lambda seen: _lengths(seen, party)))
    if party == KEY_HOLDER:
        return  # it opens what it cannot read: totals and numbers are the server's
    yield finding("public", _public(pairs))
    views = [(_view(a, party), _view(b, party)) for a, b in pairs]
    yield finding("constants", _constants(views))
    yield finding("last bits", _last_bits(pairs))
    yield finding("reuse", *_reuse(views))
    bound, p, why = _values(views, told, of.delta)
    yield finding("values", why, bound, p)


# What is equal, or is not --------------------------------------------------------------------------


def _events(seen: Seen, party: str) -> Mapping[tuple[Any, ...], int]:
    """How often each kind of message came from whom to whom, at each place."""
    return {message: len(lengths) for message, lengths in _lengths(seen, party).items()}


def _lengths(seen: Seen, party: str) -> Mapping[tuple[Any, ...], tuple[int, ...]]:
    """The lengths of the messages that a party sees."""
    return {
        message: lengths
        for message, lengths in seen.lengths.items()
        if party in (message.sender, message.to)
        or (party == OTHERS and message.sender == SERVER and message.to != KEY_HOLDER)
    }


def _differing(
    pairs: Sequence[tuple[Seen, Seen]],
    read: Callable[[Seen], Mapping[tuple[Any, ...], Any]],
    *,
    once: bool = False,
) -> str:
    """The first difference that every key shows, in words. once: or any key.

    Ciphertexts are drawn outside of the key, and their lengths may vary within a side too: those are left
    out.
    """
    sides = [(read(a), read(b)) for a, b in pairs]
    places = sorted({place for a, b in sides for place in (*a, *b)}, key=repr)
    for place in places:
        if once:
            if apart := [(a.get(place), b.get(place)) for a, b in sides if a.get(place) != b.get(place)]:
                return f"{place}: {apart[0][0]} against {apart[0][1]}"
            continue
        own, others = ({repr(side[n].get(place)) for side in sides} for n in (0, 1))
        if not own & others:
            return f"{place}: {sorted(own)[0]} against {sorted(others)[0]}"
    return ""


def _public(pairs: Sequence[tuple[Seen, Seen]]) -> str:
    """The first public word of the first round that differs under a key.

    Arrays that vary with the key follow from what was noised before, and may differ.
    """
    places = sorted({place for a, b in pairs for place in (*a.public, *b.public)}, key=repr)
    for place in [place for place in places if place[0][0] <= 1]:
        sides = [(a.public.get(place), b.public.get(place)) for a, b in pairs]
        varies = any(not _equal(side[n], sides[0][n]) for side in sides for n in (0, 1))
        if varies and place[1].startswith("public"):
            continue
        for own, other in sides:
            if not _equal(own, other):
                return f"{place}: {_short(own)} against {_short(other)}"
    return ""


def _equal(one: Floats | None, other: Floats | None) -> bool:
    if one is None or other is None:
        return one is other
    return np.array_equal(one, other, equal_nan=True)


def _short(value: Floats | None) -> str:
    return "nothing" if value is None else np.array2string(value[:4], precision=6)


View = Mapping[tuple[Any, ...], Floats]


def _view(seen: Seen, party: str) -> dict[tuple[Any, ...], Floats]:
    """The values that a party sees: the finest of each, since coarser ones follow from them."""
    if party != SERVER:
        return {("total", *place): value for place, value in seen.totals.items()}
    found: dict[tuple[Any, ...], list[Floats]] = {}
    # All clients' noise is alike, so their values are one vector.
    for (place, _, name), value in sorted(seen.released.items()):
        found.setdefault(("release", place, name), []).append(value)
    for at, value in seen.totals.items():
        if ("release", *at) not in found:
            found["total", *at] = [value]
    for (place, client, name), value in sorted(seen.numbers.items()):
        if (place, client, name) not in seen.released:
            found.setdefault(("number", place, name), []).append(value)
    return {place: np.concatenate(values) for place, values in found.items()}


def _constants(views: Sequence[tuple[View, View]]) -> str:
    """Values that are the same under every key on one side, and others on the other side."""
    for place in sorted({key for a, b in views for key in (*a, *b)}, key=repr):
        if any(place not in a or place not in b for a, b in views):
            continue  # who was silent is the other distinguisher's
        shapes = [{side[n][place].shape for side in views} for n in (0, 1)]
        if max(map(len, shapes)) > 1:
            continue  # it follows from what was noised before
        if shapes[0] != shapes[1]:
            return f"{place}: shapes {shapes[0]} against {shapes[1]}"
        own, others = (np.array([side[n][place] for side in views]) for n in (0, 1))
        with np.errstate(invalid="ignore"):
            fixed = (own == own[0]).all(0) & (others == others[0]).all(0) & (own[0] != others[0])
        odd = ~np.isfinite(own).all(0) ^ ~np.isfinite(others).all(0)
        if (fixed | odd).any():
            at = int(np.argmax(fixed | odd))
            return f"{place}, entry {at}: {own[0].flat[at]} against {others[0].flat[at]}"
    return ""


def _last_bits(pairs: Sequence[tuple[Seen, Seen]]) -> str:
    """Parts below the grid of what was opened, that differ between the sides under every key."""

    def below(seen: Seen) -> Mapping[tuple[Any, ...], Floats]:
        own = {("release", *k): v for k, v in seen.released.items() if k[2] in seen.steps}
        own |= {("total", *k): v / seen.steps[k[1]] for k, v in seen.totals.items()}
        return {place: value - np.rint(value) for place, value in own.items()}

    parts = [(below(a), below(b)) for a, b in pairs]
    for place in parts[0][0]:
        if (
            all(place in a and place in b for a, b in parts)
            and len({side[place].shape for pair in parts for side in pair}) == 1
        ):
            apart = np.array([np.abs(a[place] - b[place]) > 1e-6 for a, b in parts])
            if apart.all(0).any():
                return f"{place}, entry {int(np.argmax(apart.all(0)))}"
    return ""


# What chance can do --------------------------------------------------------------------------------


def _reuse(views: Sequence[tuple[View, View]]) -> tuple[str, float, float]:
    """Whether the residuals of one value in two rounds are one noise."""
    worst, tests = ("", 0.0, 1.0), 0
    if len(views) < 3:
        return worst
    named: dict[tuple[Any, ...], list[tuple[Any, ...]]] = {}
    for place in views[0][0]:
        named.setdefault((place[0], *place[2:]), []).append(place)
    for places in named.values():
        for first, second in pairwise(sorted(places)):
            residuals = [_residuals(views, place) for place in (first, second)]
            if any(r is None for r in residuals):
                continue
            x, y = (r.ravel() for r in residuals if r is not None)
            if len(x) != len(y) or not x.std() or not y.std():
                continue
            r = float(np.corrcoef(x, y)[0, 1])
            dof = len(x) * (len(views) - 1) // len(views)
            tests += 1
            if dof > 4 and r > _ALIKE:
                z = (np.arctanh(min(r, 1 - 1e-12)) - np.arctanh(_ALIKE)) * sqrt(dof - 3)
                p = float(stats.norm.sf(z))
                if p < worst[2]:
                    worst = (f"{first} and {second}: correlation {r:.3f}", inf, p)
    return (*worst[:2], min(1.0, worst[2] * max(tests, 1)))


def _residuals(views: Sequence[tuple[View, View]], place: tuple[Any, ...]) -> Floats | None:
    if any(place not in a for a, _ in views) or len({a[place].shape for a, _ in views}) > 1:
        return None
    own = np.array([a[place] for a, _ in views])
    with np.errstate(invalid="ignore"):
        found: Floats = own - own.mean(0)
    return found if np.isfinite(found).all() else None


def _values(views: Sequence[tuple[View, View]], told: float, delta: float) -> tuple[float, float, str]:
    """Epsilon at delta that the values show, its p-value, and where most of it comes from."""
    places = [p for p in views[0][0] if all(p in a and p in b for a, b in views)]
    places = [p for p in places if len({side[p].shape for pair in views for side in pair}) == 1]
    limit = _mu(told, delta)
    exact: list[tuple[float, float, tuple[Any, ...]]] = []
    rest: list[tuple[tuple[Any, ...], Floats, Floats]] = []
    for place in places:
        own, others = (np.array([side[n][place] for side in views]) for n in (0, 1))
        noisy = np.isfinite(own).all(0) & np.isfinite(others).all(0) & (own.std(0) + others.std(0) > 0)
        if not noisy.any():
            continue
        own, others = own[:, noisy], others[:, noisy]
        moved = others - own
        deviation = sqrt(float(own.var(0, ddof=1).mean()))
        if deviation and sqrt(float(moved.var(0).mean())) <= _SAME * deviation:
            slack = sqrt(float(moved.var(0).sum()))
            length = max(0.0, float(np.linalg.norm(moved.mean(0))) - slack)
            exact.append((length / deviation, own.size - own.shape[1], place))
        else:
            rest.append((place, own, others))
    worst = (0.0, 1.1, "")
    if exact:
        mu = sqrt(sum(own**2 for own, _, _ in exact))
        most = max(exact)
        if mu > 0:
            # of a sum of squares over estimated variances (Satterthwaite 1946)
            dof = mu**4 / sum(own**4 / free for own, free, _ in exact)
            p = float(stats.chi2.cdf(dof * (limit / mu) ** 2, dof))
            worst = (_epsilon(mu, delta), p, f"{most[2]}: {mu:.3g} deviations apart, told {limit:.3g}")
    for place, own, others in rest:
        bound, p = _along_a_line(own, others, limit, delta)
        if p < worst[1]:
            worst = (bound, p, f"{place}: {bound:.3g} along a line")
    # The least of several p-values, times their number, is one (Bonferroni).
    return worst[0], min(1.0, worst[1] * max(1, len(rest) + bool(exact))), worst[2]


def _along_a_line(own: Floats, others: Floats, limit: float, delta: float) -> tuple[float, float]:
    """Half of the keys choose the line, the other half is compared on it."""
    half = len(own) // 2
    count = len(own) - half
    line = (others[:half] - own[:half]).mean(0) if half else np.zeros(own.shape[1])
    length = float(np.linalg.norm(line))
    if count < 2 or not length:
        return 0.0, 1.0
    x, y = own[half:] @ line / length, others[half:] @ line / length
    deviation = sqrt((x.var(ddof=1) + y.var(ddof=1)) / 2)
    if not deviation:
        return (inf, 0.0) if abs(y.mean() - x.mean()) > 1e-9 else (0.0, 1.0)
    apart = float(y.mean() - x.mean()) / deviation
    # Coupled sides share their noise, so that no more than `count` residuals are independent.
    with np.errstate(all="ignore"):
        p = float(stats.nct.sf(apart * sqrt(count / 2), count - 1, limit * sqrt(count / 2)))
    if not isfinite(p):  # far out in the tail of the noncentral law
        p = 0.0 if apart > 10 * limit + 10 else 1.0
    return _epsilon(max(apart, 0.0), delta), max(p, 1e-300)


def _delta_of(epsilon: float, mu: float) -> float:
    """The smallest delta at which a Gaussian of mu is (epsilon, delta) private (Balle and Wang 2018)."""
    return float(ndtr(mu / 2 - epsilon / mu) - exp(epsilon + log_ndtr(-mu / 2 - epsilon / mu)))


@lru_cache(maxsize=4096)
def _mu(epsilon: float, delta: float) -> float:
    """The largest mu of a Gaussian that is (epsilon, delta) private."""
    if not isfinite(epsilon):
        return inf
    return float(brentq(lambda mu: _delta_of(epsilon, mu) - delta, 1e-9, 1e4))


def _epsilon(mu: float, delta: float) -> float:
    """Epsilon of a Gaussian of mu at delta."""
    if mu <= 0 or _delta_of(0.0, mu) <= delta:
        return 0.0
    if mu > 30:
        return mu * mu / 2  # near enough, where the exact figure would overflow
    return float(brentq(lambda epsilon: _delta_of(epsilon, mu) - delta, 0.0, 1e3))


# By hand -------------------------------------------------------------------------------------------


def table(findings: Sequence[Finding]) -> str:
    """The findings as lines, the least likely first."""
    red = {id(found) for found in holm(findings)}
    lines = [f"{'':3} {'study':44} {'party':7} {'distinguisher':13} {'told':>8} {'bound':>8} {'p':>8}  why"]
    for own in sorted(findings, key=lambda one: one.p):
        mark = "RED" if id(own) in red else ""
        lines.append(
            f"{mark:3} {own.study:44.44} {own.party:7} {own.distinguisher:13} {own.told:8.3g} "
            f"{own.bound:8.3g} {own.p:8.1e}  {own.why:.100}"
        )
    return "\n".join(lines)


def main(first: int = 0, last: int = 10**6) -> int:
    """Audit the grid's studies with these numbers and print a table. Returns how many findings are red."""
    from statistical.audited_grid import cases, pair_of

    findings = [found for case in cases()[first:last] for found in tried(pair_of(case), runs=3)]
    print(table([found for found in findings if found.p < 1]))
    red = holm(findings)
    print(f"{len(findings)} tests of {len({own.study for own in findings})} studies; {len(red)} red.")
    return len(red)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])) > 0)
