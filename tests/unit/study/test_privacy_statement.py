"""The privacy statement of a run says what its ledgers say, for each packaged protocol."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from pathlib import Path

import pytest
from support.arms import ARMS
from support.combinations import study
from support.command_line import said as command
from support.every import every
from support.private_studies import DPSGD as TRAINED
from support.private_studies import client_level
from support.tiny_study import FEDAVG, composed, text, with_privacy, world

from securefl.accounting import Curve, curves
from securefl.accounting.figures import in_words
from securefl.accounting.statements import releases_of, statement, terms_of
from securefl.core.errors import ConfigError
from securefl.core.release import PARTIES
from securefl.study.composition import built
from securefl.study.config import Study, parse
from securefl.study.folder import study_of
from securefl.study.forecast import forecasts, lines
from securefl.study.privacy_statement import _worst, as_latex, as_text, statements
from securefl.study.run_report import over_rounds_of
from securefl.study.session import run_study

PROTOCOLS = list(dict(reversed([*((name, (name, options)) for name, options in ARMS)])).values())
"""Each packaged protocol, with the first of its options."""
Ran = Callable[[tuple[str, str], str, str], Path]


@pytest.fixture(scope="session")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """The folder of a tiny run of a protocol, by its way of summing and the place of its noise."""

    @cache
    def folder(arm: tuple[str, str], way: str, noise: str) -> Path:
        of = study((arm, way, noise))
        sent = {own.spec.name for own in built(of.arms[0], world(of).problem).contributions}
        named = json.dumps([name for name in of.privacy.non_private if name in sent])
        return run(parse(with_privacy(of.text, {"non_private": named})), tmp_path_factory.mktemp(arm[0]))

    return folder


def run(of: Study, folder: Path) -> Path:
    run_study(of, folder, lambda *_: None, baselines=False)
    return folder


def ledgers(folder: Path) -> list[Path]:
    return sorted((folder / "private" / "arms").rglob("ledger.sqlite"))


def largest(folder: Path, party: str) -> Curve:
    """The curve of the holder of a run who spent most against a party, by mu."""
    found = [own[party] for path in ledgers(folder) for own in curves(path).values()]
    return max(found, key=lambda own: own.mu)


def said_of(party: str, own: Curve) -> str:
    """Mu and rho are exact for Gaussians alone, and so stated of them alone."""
    exact = f"μ = {own.mu:.3g} (Gaussian DP) and ρ = {own.mu**2 / 2:.3g} (zCDP); "
    bound = f"a test for one unit with 5 % of false alarms misses at least {100 * own.miss([0.05])[0]:.3g} %."
    return f"Against the {party}: {'' if own.history.steps else exact}{bound}"


def held(folder: Path) -> None:
    """Check each figure of the statement of a run with one arm against its ledgers."""
    (said,) = statements(folder).values()
    terms = terms_of(ledgers(folder)[0])
    assert said["Delta"] == [f"δ = {terms.delta:g}."]
    assert said["Unit"][0].startswith(f"One {terms.unit}")
    assert f"({terms.adjacency})" in said["Adjacency"][0]
    most: Counter[str] = Counter()
    for party in PARTIES:
        epsilon = 0.0
        for path in ledgers(folder):
            rows = statement(path, party=party).releases
            epsilon = max([epsilon, *(float(row["epsilon"]) for row in rows)])
            by_holder = Counter((row["holder"], row["name"]) for row in rows)
            for (_, name), count in by_holder.items():
                most[name] = max(most[name], count)
        assert f"ε = {in_words(epsilon)} against the {party}." in said["Epsilon"]
    named = {
        ("server",): "the server",
        ("server", "others"): "the server and the others",
        ("key-holder", "others"): "the key-holder and the others",
        ("server", "key-holder", "others"): "the server, the key-holder and the others",
    }[terms.adversaries]
    assert f"It is claimed against {named}." in said["Epsilon"]
    assert said.get("Curve", []) == [
        said_of(party, worst) for party in PARTIES if 0 < (worst := largest(folder, party)).mu < math.inf
    ]
    mechanisms = " ".join(said["Mechanism"])
    for name, count in most.items():
        assert re.search(rf"\b{name}: [^:]*, {count} times? at most\.", mechanisms), (name, count, mechanisms)


@every("arm", PROTOCOLS)
def test_the_figures_of_each_protocol_are_the_ledgers(ran: Ran, arm: tuple[str, str]) -> None:
    held(ran(arm, "clear", "local"))


def test_noise_of_a_trusted_server_is_no_epsilon_against_it(ran: Ran) -> None:
    folder = ran(("fedavg", "fraction = 1.0"), "clear", "central")
    held(folder)
    (said,) = statements(folder).values()
    assert "No ε is claimed against: server. The statement trusts them." in said["Trust"]
    assert "ε = ∞ (non-private) against the server." in said["Epsilon"]
    assert "ε = 0 against the key-holder." in said["Epsilon"]


def test_correlated_noise_and_its_separation_are_named(tmp_path: Path) -> None:
    base = client_level(separation="2", budget="8.0").text.replace("fraction = 1.0", "fraction = 0.5")
    adam = '[[arm]]\nname = "adam"\nprotocol = "fedadam"\nfraction = 0.5\nlearning_rate = 0.1\n'
    apart = "A client contributes to the sum of the update in one of 2 rounds at most (`separation`)."
    of = parse(f"{base}\n{adam}")
    said = statements(run(of, tmp_path / "run"))
    together = "Noise of the update is correlated over 2 rounds (BandMF)."
    assert said["x"]["Mechanism"][-2:] == [apart, together]
    assert said["adam"]["Mechanism"][-1] == apart, "a model that is no sum of totals has independent noise"
    buffers = "Noise of the update is correlated over all rounds (BLT of 1 buffer)."
    blt = ({"bands": '"blt"'}, [apart, buffers])
    for more, words in (blt, ({"bands": "1"}, [apart]), ({"separation": "1"}, [])):
        assert over_rounds_of({"x": composed(parse(with_privacy(base, more)))}) == {"x": words}


def test_private_training_states_its_sampling(tmp_path: Path) -> None:
    written = with_privacy(text(FEDAVG, non_private="[]", extra=TRAINED), {"adjacency": '"add-remove"'})
    folder = run(parse(written), tmp_path / "run")
    held(folder)
    (said,) = statements(folder).values()
    assert "steps of the Poisson-sampled Gaussian mechanism, noise multiplier" in " ".join(said["Mechanism"])
    assert said["Sampling"][0].startswith("Each record enters a step of training with probability 0.1")
    assert "upper bound from privacy loss distributions" in said["Composition"][-1]


def test_what_leaves_without_noise_is_no_finite_epsilon(tmp_path: Path) -> None:
    folder = run(parse(text(FEDAVG)), tmp_path / "run")
    held(folder)
    (said,) = statements(folder).values()
    assert "It is not finite: the update leaves without noise." in said["Epsilon"]
    assert "Values that may leave without noise: update." in said["Not covered"]


def test_several_seeds_state_the_largest_epsilon(tmp_path: Path) -> None:
    folder = run(parse(text(FEDAVG, seeds="[3, 4]")), tmp_path / "run")
    held(folder)
    (said,) = statements(folder).values()
    assert "2 seeds. Each seed is a run by itself." in said["Composition"][0]


def test_the_largest_epsilon_is_that_of_the_holder_with_most_releases(ran: Ran) -> None:
    path = ledgers(ran(("fedavg", "fraction = 1.0"), "clear", "local"))[0]
    own = next(iter(releases_of(path).values()))
    often = Counter({release: 4 * count for release, count in own.items()})
    once, most = (_worst([one], "server", 1e-5).epsilon(1e-5) for one in (own, often))
    assert 0 < once < most
    for both in ([own, often], [often, own]):
        assert _worst(both, "server", 1e-5).epsilon(1e-5) == most


def test_fedprof_per_client_says_that_it_has_no_such_form(ran: Ran) -> None:
    folder = ran(("fedprof", "fraction = 1.0"), "clear", "local")
    of = study_of(folder)
    (arm,) = forecasts(of, world(of), lambda name: nullcontext())
    assert "no finite ε: one client moves the profile without bound" in "\n".join(lines(of, [arm]))
    (said,) = statements(folder).values()
    assert "profile without bound, so it is not noised (its protocol has no client-level form)." in " ".join(
        said["Epsilon"]
    )


def test_the_command_prints_text_latex_and_json(ran: Ran) -> None:
    folder = str(ran(("fedavg", "fraction = 1.0"), "clear", "local"))
    found = statements(Path(folder))
    plain, latex, told = (command("statement", folder, *option) for option in ((), ("--latex",), ("--json",)))
    assert plain.output == as_text(found)
    assert latex.output == as_latex(found)
    assert json.loads(told.output) == found
    topics = "Unit", "Adjacency", "Delta", "Epsilon", "Curve", "Mechanism", "Sampling", "Composition", "Trust"
    assert [*found["x"]] == [*topics, "Not covered"]
    assert latex.output.count(r"\item[") == len(topics) + 1
    assert r"$\mu$ = " in latex.output
    assert r"$\rho$ = " in latex.output


def test_no_word_of_a_study_is_a_command_of_latex() -> None:
    evil = r"\input{/etc/passwd} 100 % of $a_b$ & ~^#"
    shown = as_latex({evil: {"Unit": [evil]}})
    assert r"\textbackslash{}input\{/etc/passwd\} 100 \% of \$a\_b\$ \& " in shown
    bare = re.sub(r"\\(textbackslash|textasciitilde|textasciicircum)\{\}|\\[&%$#_{}]", "", shown)
    bare = re.sub(r"\\(paragraph\{|begin\{description\}|item|end\{description\})", "", bare)
    assert not set("\\%&#$~^_") & set(bare)


def test_a_folder_without_ledgers_or_of_no_run_is_refused(ran: Ran, tmp_path: Path) -> None:
    folder = ran(("fedavg", "fraction = 1.0"), "clear", "local")
    published = tmp_path / "published"
    shutil.copytree(folder, published, ignore=shutil.ignore_patterns("private"))
    with pytest.raises(ConfigError, match=r"Expected the ledgers of the run .* on its machine"):
        statements(published)
    with pytest.raises(ConfigError, match=r"no study\.toml"):
        statements(tmp_path)
