"""The commands of `securefl party`: what they ask, print and refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from support.party_folders import CLEAR, MASKED, build_once

from securefl.commands.party import party
from securefl.core.errors import ConfigError
from securefl.deployment.roster import parse

STATED = "--unit record --adjacency replace-one --delta 1e-4 --budget inf"


@pytest.fixture(autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build_once(monkeypatch)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    Path("study.toml").write_text(CLEAR)


def call(words: str, said: str | None = None) -> Result:
    found = CliRunner().invoke(party, words.split(), input=said)
    if isinstance(found.exception, ConfigError):
        raise found.exception
    return found


def test_from_a_study_to_a_pinned_roster() -> None:
    for name, role in (("a", "--client 0"), ("b", "--client 1"), ("c", "--client 2"), ("s", "--server")):
        made_here = call(f"init {name} study.toml {role} --yes")
        assert made_here.exit_code == 0, made_here.output
        assert f"Next: securefl party enrol {name}" in made_here.stdout
    lines = [call(f"enrol {name}") for name in "abcs"]
    assert "client-0000: fingerprint" in lines[0].stderr
    Path("roster.jsonl").write_text("".join(one.stdout for one in lines))
    digest = parse(Path("roster.jsonl").read_text()).digest.hex()
    asked = call("pin a roster.jsonl", "y\n")
    assert digest in asked.stdout
    assert asked.stderr.count("client-000") == 3
    call(f"pin b roster.jsonl --digest {digest[:16]}")
    with pytest.raises(ConfigError, match="nothing was pinned"):
        call("pin c roster.jsonl", "n\n")
    for wrong in ("f" * 16, digest[:15]):
        with pytest.raises(ConfigError, match="another roster"):
            call(f"pin c roster.jsonl --digest {wrong}")
    said = json.loads(call("status a --json").stdout)
    assert said["roster"] == digest
    assert said["terms"]["budget"] == "inf"
    assert "roster: none pinned" in call("status c").stdout
    call("pin s roster.jsonl --yes")
    with pytest.raises(ConfigError, match="server's folder"):
        call("serve s")
    rotated = call("rotate a")
    assert rotated.stdout != lines[0].stdout
    assert "old line replaced by this one" in rotated.stderr
    with pytest.raises(ConfigError, match="it stays"):
        call("recount a --yes")


def test_terms_are_shown_and_agreed_to() -> None:
    asked = call("init p study.toml --client 0", "y\n")
    assert asked.exit_code == 0
    assert "unit record, adjacency replace-one, delta 0.0001, budget inf" in asked.stderr
    assert "update without noise" in asked.stderr
    with pytest.raises(ConfigError, match="nothing was made"):
        call("init q study.toml --client 1", "n\n")
    assert not Path("q").exists()


def test_where_nobody_can_answer_a_question_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    call("init a study.toml --client 0 --yes")
    asking = ("init p study.toml --client 1", "recount a")
    for words in asking:
        with pytest.raises(ConfigError, match="--yes"):
            call(words, "")
    monkeypatch.setattr("sys.stdin", None)  # closed, as some shells and services leave it
    for words in asking:
        with pytest.raises(ConfigError, match="--yes"):
            party(words.split(), standalone_mode=False)
    assert not Path("p").exists()


def test_terms_that_the_holder_states_are_not_asked_for_and_hold() -> None:
    assert call(f"init p study.toml --client 0 {STATED}").exit_code == 0
    for other, said in (("--budget 8", "budget = inf in place of 8"), ("--delta 1e-6", "delta = 0.0001")):
        with pytest.raises(ConfigError, match=said):
            call(f"init q study.toml --client 1 {other}", "y\n")
    assert not Path("q").exists()


def test_a_command_line_that_says_too_little_or_too_much_is_told() -> None:
    for words in ("", "--client 0 --server", "--client -1"):
        assert call(f"init p study.toml {words} --yes").exit_code == 2
    for words, said in (
        ("--client 0 --seed 99", "a seed among"),
        ("--client 0 --arm y", "name of an arm, which of x, got 'y'"),
        ("--client 0 --counter p", "outside"),
    ):
        with pytest.raises(ConfigError, match=said):
            call(f"init p study.toml {words} --yes")
    for words, said in (("status study.toml", "which is a file"), ("serve nowhere", "nowhere")):
        with pytest.raises(ConfigError, match=said):
            call(words)
    Path("empty").mkdir()
    for words in ("status empty", "enrol empty", "serve empty", "rotate empty"):
        with pytest.raises(ConfigError, match="securefl party init"):
            call(words)
    with pytest.raises(ConfigError, match="securefl party init"):
        call("init p study.toml --client 0 --yes --again")


def test_a_user_that_is_none_is_told() -> None:
    call("init p study.toml --client 0 --yes")
    with pytest.raises(ConfigError, match="nobody-of-this-name"):
        call("serve p --allow nobody-of-this-name")


def test_a_platform_that_names_no_peer_is_told_before_anything_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("securefl.deployment.peers.require_platform.__defaults__", ("win32",))
    with pytest.raises(ConfigError, match=r"got win32.*WSL"):
        call("serve .")


def test_terms_of_which_some_are_stated_are_asked_for() -> None:
    with pytest.raises(ConfigError):
        call("init p study.toml --client 0 --unit record --delta 1e-4 --budget inf", "n\n")
    assert not Path("p").exists()


@pytest.mark.parametrize(("words", "said"), [("", "y\n"), ("--yes", None), (STATED, None)])
def test_what_leaves_without_noise_and_what_is_accepted_is_told(words: str, said: str | None) -> None:
    """Whatever there is to ask. `accepts_kept_state` of an arm is in the plan that a holder agrees to."""
    Path("study.toml").write_text(MASKED.replace('"fedavg"', '"lg_fedavg"') + "\naccepts_kept_state = true\n")
    done = call(f"init p study.toml --client 0 {words}", said)
    assert done.exit_code == 0, done.output
    for told in (done.stdout, done.stderr) if said else (done.stdout,):
        assert "(accepts_kept_state)" in told
        assert "without noise" in told
    assert call("status p --json").exit_code == 0
