"""The story of a match: its numbers are those of the protocol, and its page says no more than they do."""

from __future__ import annotations

import html
import json
import shlex
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from support.every import every
from support.tiny_he import SURELY

from securefl.commands.main import cli
from securefl.core.errors import ConfigError, DataError
from securefl.matching import Options, Profile, Variant
from securefl.matching.story import Story, played
from securefl.matching.story_page import render

EVIL = "<script>alert(1)</script>"


def profiles(number: int, elements: int = 5) -> dict[str, Profile]:
    rng = np.random.default_rng(3)
    return {
        f"ward {place}": Profile(rng.normal(place, 1.0, elements), rng.uniform(0.5, 2.0, elements), 10)
        for place in range(number)
    }


BASELINE = Profile(np.zeros(5), np.ones(5), 30)


@pytest.fixture(scope="module", params=["pads full", "pads mean-only", "pads-128 full", "compact mean-only"])
def story(request: pytest.FixtureRequest) -> Story:
    word, variant = request.param.split()
    ticks = count()  # each look at this clock finds it a second later
    options = Options(parameters=word, variant=Variant(variant))
    return played(profiles(3), BASELINE, options, clock=lambda: next(ticks))


def test_scores_are_the_divergences_within_the_bound(story: Story) -> None:
    assert [own.label for own in story.clients] == ["ward 0", "ward 1", "ward 2"]
    assert 0 < story.bound < 1e-2
    for own in story.clients:
        assert abs(own.score - own.truth) <= SURELY * story.bound
    assert max(own.truth for own in story.clients) == story.clients[2].truth > 1


def test_each_party_has_what_the_protocol_gives_it(story: Story) -> None:
    for own in story.clients:
        assert own.sealed in own.file, "the eavesdropper's bytes are those of the file"
        readable = own.clear.tobytes()
        assert bool(readable) == (story.options.variant == "mean-only")
        assert own.message.endswith(readable), "the evaluator reads what the variant leaves it"
        assert not readable or own.clear[:5].tolist() == own.profile.variance.tolist()
        assert own.label.encode() in own.file
        assert len(own.message) < len(own.sealed), "the seal adds its key and its tag"
        assert own.message not in own.file
        assert own.message != own.again
        assert len(own.message) == len(own.again)
        if story.options.padded:
            assert own.request not in story.scores_file, "sealed to the key holder"


@every("parameters", ["pads", "pads-128"])
def test_under_pads_integers_add_up(parameters: str) -> None:
    told = played(profiles(2), BASELINE, Options(parameters=parameters))  # type: ignore[arg-type]
    for own in told.clients:
        words = own.words
        assert words is not None
        assert words.bits == (64 if parameters == "pads" else 128)
        assert len(words.plain) == len(words.masked) == len(words.weights) == len(own.features) == 11
        assert words.regained == 0, "evaluator and key holder together have the client's integers"
        size = words.bits // 8
        assert all(one.to_bytes(size, "little") in own.message for one in words.masked)
        assert words.word.to_bytes(size, "little") == own.request[-size:]
        assert all(one.to_bytes(size, "little") in own.request for one in words.share)
        ratio = np.array(words.plain) / own.features
        assert np.allclose(ratio.astype(float), float(ratio[0]), rtol=1e-3), "one public scale"
        assert not set(words.plain) & set(words.masked)
        assert not set(words.weights) & set(words.share)


def test_the_page_has_the_numbers_of_its_match(story: Story) -> None:
    shown = render([story], about="Three wards.", reproduce="securefl match --story -o x.html")
    far = story.clients[-1]
    assert f"The key holder read {story.clients[0].score:.3g} for ward 0" in shown
    assert far.sealed[:24].hex(" ", 4) in shown
    assert f"{far.profile.mean[0]:.3f}" in shown
    assert "Eavesdropper" in shown
    assert ("The evaluator took 1000.0 ms" in shown) == (not story.options.padded)
    assert "A client took 333.3 ms" in shown
    assert shown.count("For all clients it took 1000.0 ms") == 2
    assert ("left readable" in shown) == bool(len(far.clear))
    assert ("nobody read a client&#39;s numbers" in shown) != bool(len(far.clear))
    if far.words is not None:
        assert str(far.words.masked[0]) in shown
        assert str(far.words.word) in shown
        assert "from a client&#39;s integers is then 0" in shown
    else:
        assert far.message[:24].hex(" ", 4) in shown
        assert "--params compact" in shown


def test_the_page_escapes_labels() -> None:
    told = played({EVIL: profiles(1)["ward 0"]}, BASELINE, Options(parameters="pads"))
    assert "<script" not in render([told], about=EVIL, reproduce=EVIL)


def test_what_the_story_has_no_step_for_is_refused() -> None:
    with pytest.raises(ConfigError, match="encrypted baseline"):
        played(profiles(1), BASELINE, Options(parameters="strong-encrypted"))
    with pytest.raises(DataError, match="at least one profile"):
        played({}, BASELINE, Options(parameters="pads"))
    with pytest.raises(DataError, match="elements"):
        played(profiles(1, elements=4), BASELINE, Options(parameters="pads"))


def invoke(*words: str) -> tuple[int, str, BaseException | None]:
    told = CliRunner().invoke(cli, ["match", "--story", *words])
    return told.exit_code, told.output, told.exception


def test_the_command_plays_an_example_or_given_profiles(tmp_path: Path) -> None:
    page = tmp_path / "story.html"
    code, said, _ = invoke("-o", str(page), "--params", "pads")
    assert code == 0, said
    assert [line.split(":")[0] for line in said.splitlines()[:-1]] == ["pads, full", "pads, mean-only"]
    assert "blurred digits" in page.read_text()
    files = []
    for name, own in {**profiles(2), "base": BASELINE}.items():
        files.append(tmp_path / f"{name}.json")
        files[-1].write_text(json.dumps({"mean": list(own.mean), "variance": list(own.variance)}))
    words = ["--baseline", str(files[-1]), *map(str, files[:-1]), "-o", str(page), "--variant", "mean-only"]
    code, said, _ = invoke(*words)
    assert code == 0, said
    assert "ward 1" in page.read_text()
    assert "the key holder reads ward 0" in said
    assert "revealed " in said
    again = html.unescape(page.read_text()).split("<pre>")[1].split("</pre>")[0]
    assert sorted(shlex.split(again)) == sorted(["securefl", "match", "--story", *words])


def test_the_command_refuses_what_a_story_cannot_use(tmp_path: Path) -> None:
    page = str(tmp_path / "story.html")
    assert invoke("-o", page, "--public", "k")[0] == 2
    assert invoke("-o", page, "--evaluator", "k")[0] == 2
    assert invoke("-o", page, "--declared", "k")[0] == 2
    assert isinstance(invoke("-o", page, "p.json")[2], ConfigError)
    assert isinstance(invoke("-o", page, "--baseline", "b.json")[2], ConfigError)
    other = tmp_path / "own.txt"
    other.write_text("mine")
    assert isinstance(invoke("-o", str(other))[2], ConfigError)
    assert other.read_text() == "mine"
    assert not Path(page).exists()


@every(
    ("words", "missing"),
    [
        ([], "--public"),
        (["--public", "a"], "--evaluator"),
        (["--public", "a", "--evaluator", "b"], "--baseline"),
        (["--public", "a", "--evaluator", "b", "--baseline", "c"], "PROFILES"),
    ],
)
def test_a_match_still_asks_for_its_files(words: list[str], missing: str) -> None:
    told = CliRunner().invoke(cli, ["match", "-o", "x.enc", *words])
    assert told.exit_code == 2
    assert f"Missing {'argument' if missing == 'PROFILES' else 'option'} '{missing}" in told.output
