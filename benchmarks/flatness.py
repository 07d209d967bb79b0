"""Whether figures of a long run stay flat: a session's second quarter beside its last, from rows of marks.

A mark has the round, the seconds that a round took since the mark before, and for each process its memory
(`NAME MB`), its CPU so far (`NAME CPU s`), and the size of its files (`NAME kB`).
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

import numpy as np
import pandas as pd

STEADY = {"sockets": "client-0005", "flower": "client-0003"}
"""By carrier: the last client, which is never killed."""
LASTING = {
    "sockets": [STEADY["sockets"], "coordinator"],
    "flower": [STEADY["flower"], "coordinator", "superlink", f"node of {STEADY['flower']}"],
}
"""By carrier: the processes that nothing kills from the second quarter of a session to its end."""
MARKS = 16
"""The marks of a session: four in each quarter."""
LIMITS = {
    "s a round": 2.0,  # other work on the machine moves it
    "MB": 1.0,
    "CPU ms a round": 1.25,
    "bytes a round": 1.1,
}
"""The most that the last quarter may have over the second."""
GROWTH = 0.02
"""MB a round that memory may take beside that: records of rounds, and caches that fill."""
LATE = 2.0
"""MB that a process may take once after the second quarter."""
STEP = 16 * 4096
"""Bytes by which a quarter's growth may differ: SQLite lengthens a file by several pages at once."""
SERVER_STEP = 48 * 4096
"""The same of the server's ledger, which grows by what its full log holds: 43 pages every 41st round."""


def quarters(marks: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The marks of a session's second and last quarter."""
    _, second, _, last = (marks.iloc[own] for own in np.array_split(np.arange(len(marks)), 4))
    return second, last


def flatness(marks: pd.DataFrame, carrier: str) -> pd.DataFrame:
    """Each figure in the session where its last quarter is highest beside the most that it may be.

    Returns:
        Columns figure, session, quarter_2, quarter_4, most. What a session did not measure has no value.
    """
    found = pd.concat(
        _of_session(own, carrier).assign(session=number) for number, own in marks.groupby("session")
    )
    found["used"] = (found["quarter_4"] / found["most"]).fillna(inf)  # what was not measured is the worst
    worst = found.sort_values("used", kind="stable").drop_duplicates("figure", keep="last")
    order = pd.Index(found["figure"].unique())
    return worst.set_index("figure").loc[order, ["session", "quarter_2", "quarter_4", "most"]].reset_index()


def _of_session(marks: pd.DataFrame, carrier: str) -> pd.DataFrame:
    second, last = quarters(marks)
    apart = last["round"].median() - second["round"].median()
    through = _not_restarted(marks.loc[second.index[0] : last.index[-1]])
    lasting = [*dict.fromkeys([*LASTING[carrier], *through])]
    rows = [
        {
            "figure": figure,
            "quarter_2": before,
            "quarter_4": after,
            "most": LIMITS[kind] * before + slack + (LATE + GROWTH * apart if kind == "MB" else 0.0),
        }
        for (figure, kind, before, slack), (*_, after, _) in zip(
            _figures(second, lasting), _figures(last, lasting), strict=True
        )
    ]
    return pd.DataFrame(rows)


def _not_restarted(marks: pd.DataFrame) -> Iterator[str]:
    """The processes that are in each of these marks, with a CPU time that never falls."""
    for column in marks.columns[marks.columns.str.endswith(" CPU s")]:
        if marks[column].is_monotonic_increasing:  # false where a mark lacks the process
            yield column.removesuffix(" CPU s")


def _figures(quarter: pd.DataFrame, lasting: list[str]) -> Iterator[tuple[str, str, float, float]]:
    """Each figure's name, kind and value, and what its limit allows beside the ratio."""

    def grown(column: str, own: pd.DataFrame = quarter) -> float:
        first, last = own.iloc[0], own.iloc[-1]
        return float((last[column] - first[column]) / (last["round"] - first["round"]))

    yield "s a round", "s a round", float(quarter["seconds"].median()), 0.0
    for name in lasting:
        yield f"MB of {name}", "MB", float(quarter[f"{name} MB"].median()), 0.0
        yield f"CPU ms a round of {name}", "CPU ms a round", 1e3 * grown(f"{name} CPU s"), 0.0
    for column in quarter.columns[quarter.columns.str.endswith(" kB")]:
        name, own = column.removesuffix(" kB"), quarter
        step = SERVER_STEP if name == "server" else STEP
        if name == "server" and own[column].iloc[-1] < own[column].iloc[-2]:
            own = own.iloc[:-1]  # the run has ended by this mark, and SQLite's log was folded into the ledger
        rounds = own["round"].iloc[-1] - own["round"].iloc[0]
        yield f"bytes a round of {name}'s files", "bytes a round", 1e3 * grown(column, own), step / rounds
