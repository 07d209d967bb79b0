"""What `securefl audit` draws: the claims as curves, and beside each what attacks proved of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from click.testing import CliRunner
from dp_accounting import GaussianDpEvent
from matplotlib.figure import Figure

from securefl.accounting.curve import Curve
from securefl.accounting.events import steps_event
from securefl.commands import audit
from securefl.commands.main import cli
from securefl.core.errors import ConfigError
from securefl.dp.auditing import Bound
from securefl.training import audits

LOUD, STEPS = GaussianDpEvent(1.0), steps_event(0.5, 1.0, 3)
CLAIMS = (("a", LOUD, 1e-5, 4.1), ("b", LOUD, 1e-3, 2.7), ("c", STEPS, 0.05, 9.0))


def typed(*arguments: Any) -> Any:
    """The command's result and the figures that it drew, after an audit of seconds."""
    found = [
        audits._bounded(name, Bound(delta=delta, event=event, lower=lower))
        for name, event, delta, lower in CLAIMS
    ]
    drawn: list[Figure] = []
    own = audit._picture

    def picture(findings: Any) -> Figure:
        drawn.append(own(findings))
        return drawn[-1]

    with (
        mock.patch.object(audits, "findings", return_value=found),
        mock.patch.object(audit, "_picture", picture),
    ):
        return CliRunner().invoke(cli, ["audit", *map(str, arguments)]), drawn


def test_each_claim_is_a_curve_with_what_was_proved_of_it(tmp_path: Path) -> None:
    out = tmp_path / "audit.svg"
    result, [figure] = typed("-o", out)
    assert result.exit_code == 1, "the third one fails"
    assert f"Figure: {out}" in result.output
    assert out.read_bytes()
    left = figure.axes[0]
    assert "proved by an audit" in [text.get_text() for text in figure.legends[0].get_texts()]
    points = {(line.get_xdata()[0], line.get_ydata()[0]) for line in left.lines if len(line.get_xdata()) == 1}
    assert points == {(lower, delta) for _, _, delta, lower in CLAIMS}
    whole = [line for line in left.lines if len(line.get_xdata()) > 1]
    assert [line.get_label() for line in whole] == ["a and 1 more", "c"]
    for line, event in zip(whole, (LOUD, STEPS), strict=True):
        assert line.get_ydata()[1:] == pytest.approx(Curve.of({event: 1}).delta(line.get_xdata())[1:])
    for _, event, delta, lower in CLAIMS:
        honest = lower <= Curve.of({event: 1}).epsilon(delta)
        assert honest == (event is LOUD)


def test_scripts_get_the_claims_events(tmp_path: Path) -> None:
    result, drawn = typed("--json")
    assert [row["event"]["event"] for row in json.loads(result.output)] == ["gaussian"] * 2 + [
        "poisson_gaussian"
    ]
    assert not drawn


def test_a_file_that_is_no_picture_is_refused_before_the_audit(tmp_path: Path) -> None:
    result, drawn = typed("-o", tmp_path / "audit.doc")
    assert isinstance(result.exception, ConfigError)
    assert ".svg" in str(result.exception)
    assert not drawn
