"""Silence is a message: under a finite epsilon nobody sees in who answers, or how long, what the records are."""

from __future__ import annotations

from pathlib import Path

from support.private_studies import private
from support.tiny_study import world
from support.transcripts import few, transcript

from securefl.core.release import SERVER


def test_the_attack_one_training_record_or_none(tmp_path: Path) -> None:
    """Specification of DP, 2.20: a client without records abstained, since its count is charged nothing."""
    of = private("fedavg", 'fraction = 1.0\naggregation = "full"')
    none, one = (transcript(of, few(world(of), count), tmp_path / str(count)) for count in (0, 1))
    assert none.finished is not None
    told = none.finished.records[-1]["epsilon"][SERVER]
    assert 0 < told < 20
    assert none.pattern() == one.pattern()
