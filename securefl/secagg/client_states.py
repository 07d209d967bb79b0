"""What a client of secure aggregation knows in each phase."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from securefl.core.keys import SecretKey
from securefl.core.signing import AgreementKey
from securefl.secagg import checks
from securefl.secagg.agreement import ClosedRoster, Entry
from securefl.secagg.dealing import Pair
from securefl.secagg.messages import Dealt, Quorum, RosterClosed, Survivors

ORDER: Final = (RosterClosed, Dealt, Survivors, Quorum)


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """`due` is the place in the order of the server's messages. `waited` counts deadlines that passed."""

    due: int = 0
    waited: int = 0


@dataclass(frozen=True, kw_only=True)
class Beginning(Waiting):
    pass


@dataclass(frozen=True, kw_only=True)
class Advertised(Waiting):
    """Its keys are out.

    `closed` is the roster it was shown, while the host records that it deals under it.
    """

    secret: SecretKey
    key: AgreementKey
    entry: Entry
    closed: ClosedRoster | None = field(default=None, repr=False)


@dataclass(frozen=True, kw_only=True)
class Dealing(Waiting):
    """Its shares are out.

    `opened` are the others' shares, while the host records under whose masks it sends.
    """

    due: int = 1
    key: AgreementKey
    seed: SecretKey
    closed: ClosedRoster = field(repr=False)
    own: Pair
    opened: checks.Opened | None = field(default=None, repr=False)


@dataclass(frozen=True, kw_only=True)
class Holding(Waiting):
    """It holds the shares of its dealers. The host masks; with `sent` the input is out, and it waits."""

    due: int = 2
    closed: ClosedRoster = field(repr=False)
    dealers: tuple[int, ...]
    pairs: Mapping[int, Pair] = field(repr=False)
    sent: bool = False


@dataclass(frozen=True, kw_only=True)
class Agreeing(Waiting):
    """It was shown the survivors.

    `signed` and `answered` say whether it signed them and opened its shares.
    """

    due: int = 3
    held: Holding
    survivors: tuple[int, ...]
    signed: bool = False
    answered: bool = False


@dataclass(frozen=True, kw_only=True)
class Finished(Waiting):
    due: int = len(ORDER)


ClientState = Beginning | Advertised | Dealing | Holding | Agreeing | Finished
