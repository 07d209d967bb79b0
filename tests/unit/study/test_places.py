"""An error found after the text was read says which file, section and arm it is about, and what exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.every import every
from support.private_studies import AVERAGING, client_level, private
from support.tiny_study import FEDAVG, FEDPROF, study, text, with_privacy

from securefl.core.errors import ConfigError
from securefl.study import world
from securefl.study.composition import composition, compositions
from securefl.study.config import parse, read
from securefl.study.own_code import told

ADDS = '[[arm]]\nname = "ADDS"\nprotocol = "adds"\nfraction = 0.5\n'
FEDDROP = '[[arm]]\nname = "FedDrop"\nprotocol = "feddrop"\nfraction = 0.5\n'
FEDLOG = '[[arm]]\nname = "FedLog"\nprotocol = "fedlog"\n'
LOSSES = '[[arm]]\nname = "pow-d"\nprotocol = "pow_d"\nfraction = 0.5\n'
CLIENT = {"unit": '"client"', "adjacency": '"zero-out"'}
DPSGD = (
    "[dpsgd]\nclip_norm = 1.0\nnoise_multiplier = 4.0\nsampling_rate = 0.1\nexpected_batch = 16\nsteps = 2\n"
    'optimizer = "sgd"\nlearning_rate = 0.1\n'
)


def refused(folder: Path, written: str) -> str:
    """What the study in a file is refused with, once its text was read."""
    path = folder / "mine.toml"
    path.write_text(written)
    of = read(path)
    with pytest.raises(ConfigError) as caught:
        composition(of, of.arms[0], world.build(of, 3))
    found = str(caught.value)
    assert found.count("mine.toml") == 1, "named once"
    return found.removeprefix(f"{path}: ")


@every(
    ("written", "said"),
    [
        (
            text(FEDAVG).replace('kind = "mlp"\nhidden = [8]', 'kind = "char_lstm"'),
            "[model] Expected a model that reads numbers",
        ),
        (text(FEDAVG).replace("delta = 1e-4", "delta = 0.5"), "[privacy] Expected delta below 1 / n"),
        (text(FEDPROF.replace("fraction", "alpha = [1.0]\nfraction")), "[[arm]] FedProf: Expected one alpha"),
        (text(ADDS, extra=DPSGD), "[[arm]] ADDS: Expected no [dpsgd] with subnets"),
        (
            text(FEDAVG).replace('kind = "mlp"\nhidden = [8]', 'kind = "lenet5"'),
            "[model] Expected images of 28x28",
        ),
    ],
)
def test_file_and_section_are_named(written: str, said: str, tmp_path: Path) -> None:
    assert refused(tmp_path, written).startswith(said)


def test_code_that_is_missing_is_told_with_its_section(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    lost = text(FEDAVG).replace('kind = "mlp"\nhidden = [8]', 'kind = "nowhere:Net"')
    path.write_text(lost)
    with pytest.raises(ConfigError, match=r"mine.toml: \[model\].*:Net"):
        told(read(path))
    (tmp_path / "nowhere.py").write_text("Net = None")
    assert refused(tmp_path, lost).startswith("[model] Expected nowhere:Net to be a class or function")


def test_a_delta_that_would_allow_publishing_a_record_may_be_forced() -> None:
    """Which the refusal above names as its remedy."""
    forced = parse(text(FEDAVG).replace("delta = 1e-4", "delta = 0.5\nforce_delta = true"))
    assert composition(forced, forced.arms[0], world.build(forced, 3))


def test_an_unknown_name_is_told_with_the_mistakes_of_arms() -> None:
    wrong = study(FEDAVG, FEDAVG.replace('"FedAvg"', '"bare"'), non_private='["weights"]')
    with pytest.raises(ConfigError) as caught:
        compositions(wrong, world.build(wrong, 3))
    *arms, last = str(caught.value).split("\n")
    assert [line.partition(":")[0] for line in arms] == ["[privacy], for FedAvg", "[privacy], for bare"]
    assert last.startswith("[privacy] Expected non_private among count, update, which the arms send, got")


@pytest.mark.parametrize("key", ["dropout = 0.1", 'augment = "crops"'])
def test_settings_of_training_are_refused_where_no_arm_trains(key: str) -> None:
    heads = '[[arm]]\nname = "heads"\nprotocol = "heads"\n'
    private = FEDLOG.replace('"fedlog"', '"fedlog"\nbody = "private"')

    def made(*arms: str, sent: str) -> object:
        of = parse(text(*arms, non_private=sent).replace("hidden = [8]", f"hidden = [8]\n{key}"))
        return compositions(of, world.build(of, 3))

    with pytest.raises(ConfigError) as caught:
        made(heads, FEDLOG, sent='["statistic"]')
    assert str(caught.value).startswith("[model] Expected no `dropout` or `augment` where no arm trains")
    assert made(heads, FEDAVG, sent='["statistic", "update"]')
    assert made(private, sent='["statistic"]')


def test_a_budget_below_one_round_names_the_epsilon_that_mends_it() -> None:
    for refused_one, key in (
        (client_level(epsilon="8.0", budget="2.0"), "epsilon = 8.0"),
        (private("fedavg", AVERAGING["fedavg"], budget="0.5"), "noise_multiplier = 1.2"),
    ):
        with pytest.raises(ConfigError, match="Expected round 1 to cost") as caught:
            compositions(refused_one, world.build(refused_one, 3))
        remedy = re.search(r"Write `(epsilon = [\d.]+)` in", str(caught.value))
        assert remedy is not None
        mended = parse(refused_one.text.replace(key, remedy[1]))
        assert compositions(mended, world.build(mended, 3))


@every(
    ("arm", "privacy", "remedy"),
    [
        (
            FEDAVG,
            {},
            'To bound it per record, take a section [dpsgd], under adjacency = "add-remove". Or name',
        ),
        (FEDAVG, CLIENT, "To bound it per client, take `update_bound` in [local], and noise. Or name it in"),
        (
            ADDS,
            {},
            'No option of its protocol bounds it per record; it can be bounded per client (unit = "client")',
        ),
        (FEDDROP, {}, "No option of its protocol bounds it per record; it can be bounded per client"),
        (
            FEDLOG,
            {},
            '`clip` of kind "unit-l2" or "bounded" in its arm, body = "public" or "dp-sgd", and noise',
        ),
        (FEDLOG, CLIENT, "take `client_bound` in its arm, and noise"),
        (LOSSES, {}, "take `loss_bound` in its arm, and noise"),
    ],
)
def test_a_remedy_is_one_that_the_protocol_has(
    arm: str, privacy: dict[str, str], remedy: str, tmp_path: Path
) -> None:
    named = '["update"]' if arm is LOSSES else "[]"
    found = refused(tmp_path, with_privacy(text(arm, non_private=named), privacy))
    assert remedy in found
    if arm in (ADDS, FEDDROP):
        assert "dpsgd" not in found, "it is refused there"


def test_the_remedy_named_is_taken(tmp_path: Path) -> None:
    """What the message for FedAvg per record says is enough, word by word."""
    path = tmp_path / "mine.toml"
    path.write_text(with_privacy(text(FEDAVG, non_private="[]", extra=DPSGD), {"adjacency": '"add-remove"'}))
    of = read(path)
    composition(of, of.arms[0], world.build(of, 3))


def test_private_training_in_the_wrong_unit_is_told_what_to_change(tmp_path: Path) -> None:
    wrong = text(FEDAVG, non_private="[]", extra=DPSGD)
    assert 'Set adjacency = "add-remove".' in refused(tmp_path, wrong)
    per_client = with_privacy(wrong, CLIENT)
    assert "Leave the private training out. Per client take `update_bound`" in refused(tmp_path, per_client)
