"""A report stands alone, escapes what it shows, and tells the outcome as it was."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from support.every import every

from securefl.accounting.figures import in_words
from securefl.core.errors import ConfigError
from securefl.report.pages import APART, POLICY, Picture, number_text, require_page
from securefl.report.run_page import (
    TESTED,
    ArmSummary,
    PrivacyRow,
    render,
)
from securefl.report.sentences import answer, privacy_cost, rows

EVIL = "<script>alert('x')</script>"


def arm(
    name: str = "FedAvg",
    *,
    protocol: str | None = None,
    final: float = 0.8,
    rounds: int | None = None,
    target: float | None = 0.8,
    aggregation: str = "partial",
    megabytes: float = 100.0,
    epsilon: float = math.inf,
) -> ArmSummary:
    return ArmSummary(
        name=name,
        protocol=protocol or name.lower(),
        aggregation=aggregation,
        final_accuracy=final,
        best_accuracy=final + 0.0012,
        by_seed=[final],
        rounds_to_target=rounds,
        target=target,
        megabytes_up=megabytes,
        megabytes_down=megabytes,
        seconds_model=1234.5,
        watt_hours=1.07,
        wall_seconds=33.25,
        epsilon={"server": epsilon},
    )


def drawn() -> Figure:
    figure = Figure(figsize=(4, 1))
    figure.subplots().plot([0, 1])
    return figure


def picture(**changes: object) -> Picture:
    made = Picture(name="accuracy", title="Accuracy", caption="Over rounds.", draw=drawn)
    return replace(made, **changes)  # type: ignore[arg-type]  # the tests name the fields


def report(**changes: object) -> dict[str, Any]:
    empty = ("bought", "quiet", "changes", "ledgers", "alarms", "reasons", "outside", "measures", "table")
    return {
        **dict.fromkeys(empty, ()),
        **dict.fromkeys(("measure", "observers", "price", "notice"), ""),
        "title": "GasTurbine",
        "answer": "Answered.",
        "privacy": [
            PrivacyRow(party="server", arms=["FedAvg"], learns="the sum", epsilon=in_words(math.inf))
        ],
        "config": '[data]\nname = "gas-turbine"\n',
        "summary": [arm(rounds=28), replace(arm("FedProf", epsilon=3.1789), watt_hours=math.nan)],
        "figures": [picture()],
        "versions": {"securefl": "0.1.0"},
        "seeds": [1, 2],
        "reproduce": "securefl run study.toml",
        "private": False,
        **changes,
    }


class Page(HTMLParser):
    """Tags with their attributes, and the visible text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, "every tag is closed in its order"

    def handle_data(self, data: str) -> None:
        self.text += data


def test_a_report_loads_and_runs_nothing() -> None:
    text = render(report())
    page = Page(text)

    assert page.open == []
    assert re.search(r"https?://", text) is None
    assert "@import" not in text
    assert set(re.findall(r"url\((.)", text)) <= {"#"}, "parts of the same page alone"
    assert not {"script", "link", "iframe", "object", "embed"} & {tag for tag, _ in page.tags}
    loads = [value for _, attrs in page.tags for name, value in attrs.items() if name in ("src", "href")]
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert {str(value).removeprefix("#") for value in loads} <= set(ids)
    assert len(set(ids)) == len(ids), "pictures share no ids"
    policy = [a["content"] for tag, a in page.tags if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy == [POLICY]
    assert POLICY.startswith("default-src 'none'; ")


def test_everything_shown_is_escaped() -> None:
    attack = report(
        title=EVIL,
        answer=EVIL,
        price=EVIL,
        alarms=[EVIL],
        privacy=[PrivacyRow(party=EVIL, arms=[EVIL], learns=EVIL, epsilon=EVIL)],
        config=f'name = "{EVIL}"',
        summary=[replace(arm(EVIL, protocol=EVIL, aggregation=EVIL), epsilon={EVIL: 1.0})],
        figures=[picture(title=EVIL, caption='" onerror="alert(1)')],
        versions={EVIL: EVIL},
        reproduce=EVIL,
    )
    text = render(attack)
    page = Page(text)

    assert "<script" not in text
    assert f'name = "{EVIL}"' in page.text, "shown as text, letter by letter"
    images = [attrs for tag, attrs in page.tags if attrs.get("role") == "img"]
    assert [image["aria-label"] for image in images] == ['" onerror="alert(1)']
    assert not [attrs for _, attrs in page.tags if "onerror" in attrs]


@every("epsilon", [3.0, math.inf])
def test_what_no_epsilon_covers_is_said_or_left_out(epsilon: float) -> None:
    """The rule is one, with noise and without."""
    spent = {"server": epsilon, "key-holder": 0.0}
    for private in (False, True):
        page = Page(render(report(summary=[replace(arm(), epsilon=spent)], private=private, notice="Noted.")))
        tested, apart = ["Finalaccuracy", "Bestaccuracy", "Roundsto target"], ["Modelledtime", "Ranhere"]
        assert [f"{column} ‡" in page.text for column in tested] == [True] * 3
        assert [column in page.text for column in apart] == [private] * 2
        assert f"‡ {TESTED}" in page.text
        assert "Up MB" in page.text
        assert page.text.index("Noted.") < page.text.index("Answered.")


def test_a_figure_that_is_not_for_publication_says_so() -> None:
    plain = picture(title="A", caption="a.", note="Noted.")
    assert "a. Noted." in Page(render(report(figures=[plain]))).text
    assert APART in Page(render(report(figures=[replace(plain, private=True)]))).text


def test_warnings_and_reasons_are_shown() -> None:
    row = {"arm": "x", "who": "clients", "what": "silent", "reason": "Lost.", "told": ""}
    row |= dict.fromkeys(("clients", "rounds", "times"), 1)
    said = {"alarms": ["Nobody."], "bought": ["Few."], "quiet": ["Nothing."], "reasons": [row]}
    page = Page(render(report(**said)))
    assert all(words in page.text for words in ("Nobody.", "Few.", "Nothing.", "Lost."))


def test_no_accuracy_of_personal_models_is_never() -> None:
    """Where it is not for publication it is a dash, which says nothing of the target."""
    own = replace(arm("Own", final=math.nan), models="personal", best_accuracy=math.nan)
    for private in (False, True):
        assert ("never" in Page(render(report(summary=[own], private=private))).text) == private


def test_all_parts_of_the_report_are_there() -> None:
    page = Page(render(report(private=True)))

    for part in (
        "Answered.",
        "the sum",
        'name = "gas-turbine"',
        "FedProf",
        "Over rounds.",
        "0.1.0",
        "Seeds: 1, 2.",
        "securefl run study.toml",
        "∞ (non-private)",
        "3.18",
        "never",
        "1\u202f234",
        "33.2",
    ):
        assert part in page.text, part
    assert "details" in {tag for tag, _ in page.tags}
    assert "nan" not in page.text


def test_non_private_values_are_marked() -> None:
    marked = [a for _, a in Page(render(report())).tags if "non-private" in (a.get("class") or "")]
    assert len(marked) == 3, "one party of the diagram, one row of the privacy card, one arm"


def test_the_same_data_give_the_same_page() -> None:
    assert render(report()) == render(report())


@every(
    ("value", "text"), [(math.inf, "∞ (non-private)"), (3.1789, "3.18"), (0.0, "0"), (math.nan, "not known")]
)
def test_epsilon_for_people(value: float, text: str) -> None:
    assert in_words(value) == text


def test_numbers_for_people() -> None:
    assert number_text(1234567.89) == "1\u202f234\u202f567.9"
    assert number_text(0.8376, 3) == "0.838"
    assert number_text(math.nan) == "–"


def test_the_answer_is_one_sentence_about_final_accuracy() -> None:
    best = arm("FedProf", final=0.838, rounds=30)
    said = "Of 2 arms, FedProf ended highest, at an accuracy of 0.838."
    assert answer([arm(final=0.82, rounds=20), best]) == said
    assert answer([best]) == "FedProf ended at an accuracy of 0.838."
    assert answer([best, replace(best, name="B")]) == "All 2 arms ended level, at an accuracy of 0.838."
    own = replace(arm("Own", final=0.99), models="personal")
    assert answer([own, best]) == "FedProf, the only arm with a global model, ended at an accuracy of 0.838."
    assert "no epsilon covers it" in answer([own])
    assert answer([arm(final=math.nan)]) == "FedAvg ended at an unknown accuracy."
    many = [replace(best, name=f"arm {number}") for number in range(9)]
    assert "Of 10 arms, arm 0 and 8 more ended highest" in answer([*many, arm(final=0.1)])
    with pytest.raises(ConfigError):
        answer([])


def test_a_model_below_the_baseline_is_no_headline() -> None:
    poor = [replace(arm("A", final=0.1), floor=0.11), replace(arm("B", final=0.09, epsilon=2.0), floor=0.11)]
    assert answer(poor) == (
        "Nothing was learnt: of 2 arms, A ended highest, at an accuracy of 0.100, and one constant answer "
        "reaches 0.110."
    )
    assert answer(poor[1:]).startswith("Nothing was learnt: B ended at an accuracy of 0.090, and one")
    assert answer([*poor, arm("C")]) == "Of 3 arms, C ended highest, at an accuracy of 0.800."
    assert privacy_cost(poor, ["server"]) == "", "there was nothing to lose"
    assert "cost all that was learnt: B ended" in privacy_cost([poor[1], arm("C")], ["server"])


def test_the_table_of_arms_has_a_line_for_each() -> None:
    seeds = replace(arm("A", rounds=3, epsilon=2.0), by_seed=[0.7, 0.8, 0.9])
    lost = replace(arm("B", final=math.nan), by_seed=[0.8, math.nan], best_accuracy=math.nan)
    assert rows([seeds, lost, replace(arm("C"), by_seed=[0.7, 0.8])], [("all records", 0.9)]) == [
        ["arm", "accuracy", "rounds to 0.8", "MB", "ε server"],
        ["A", "0.800 ± 0.248", "3", "200.0", "2"],
        ["B", "– (0.800, –)", "–", "200.0", "∞"],
        ["C", "0.750 (0.700, 0.800)", "never", "200.0", "∞"],
        ["all records", "0.900", "", "", ""],
    ]
    assert rows([arm(target=None, megabytes=0.01)]) == [
        ["arm", "accuracy", "MB", "ε server"],
        ["FedAvg", "0.800", "0.02", "∞"],
    ]
    page = Page(render(report(table=rows([seeds])))).text
    assert page.index("Answered.") < page.index("0.800 ± 0.248")


def test_the_price_of_an_epsilon_is_that_of_the_best_arms_of_each_kind() -> None:
    bare = [arm("FedAvg", final=0.9), arm("FedProf", final=0.95)]
    noised = [arm("Head", final=0.86, epsilon=2.0), arm("Worse", final=0.8, epsilon=0.5)]
    assert privacy_cost([*bare, *noised], ["server"]) == (
        "A finite epsilon cost 9.0 points of accuracy: Head ended at 0.860, at an epsilon of 2 against the "
        "server, and FedProf, the best of 2 arms without one, at 0.950. Their methods differ too, so the "
        "noise alone may have cost more or less."
    )
    same = replace(noised[0], protocol="fedprof", final_accuracy=0.96)
    said = privacy_cost([*bare, same], ["server"])
    assert said.startswith("A finite epsilon cost no accuracy: ")
    assert "methods" not in said
    one = privacy_cost([bare[0], noised[0]], ["server"])
    assert "FedAvg, without one, at 0.900" in one


def test_no_price_is_named_where_the_arms_do_not_tell_it() -> None:
    bare, noised = arm("FedAvg", final=0.9), arm("Head", final=0.86, epsilon=2.0)
    assert privacy_cost([bare], ["server"]) == ""
    assert privacy_cost([noised], ["server"]) == ""
    assert privacy_cost([bare, noised], ["others"]) == "", "no epsilon against this party is on record"
    assert privacy_cost([bare, replace(noised, models="personal")], ["server"]) == ""
    assert privacy_cost([bare, replace(noised, final_accuracy=math.nan)], ["server"]) == ""
    silent = replace(noised, epsilon={"server": 0.0})
    assert privacy_cost([bare, silent], ["server"]) == "", "it sends nothing, which is no noise"


def test_a_page_replaces_pages_alone(tmp_path: Path) -> None:
    page, notes = tmp_path / "page.html", tmp_path / "notes.html"
    require_page(page)
    page.write_text("<!doctype html>\n")
    require_page(page)
    notes.write_text("notes")
    for other in (notes, tmp_path):
        with pytest.raises(ConfigError):
            require_page(other)
