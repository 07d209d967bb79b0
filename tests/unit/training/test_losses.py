"""Losses that a study declares: weights of classes, and functions of its own."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from support.own_study import folder, written
from support.private_studies import DPSGD
from support.tiny_dpsgd import summed, summed_by_hand
from support.tiny_study import FEDAVG, composed, run, text
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, nll_loss

from securefl.core.errors import ConfigError
from securefl.study import world
from securefl.study.config import Brought, LossSection, parse, read
from securefl.study.own_code import told
from securefl.sweep.check import data_of
from securefl.training import LocalTraining, ModelConfig, train
from securefl.training.cohorts import why_alone
from securefl.training.losses import DeclaredLoss, losses_of, require_per_record

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(40, 5)).astype(np.float32), RNG.integers(0, 3, 40)
HOT = np.eye(3, dtype=np.float32)[Y]
WEIGHTED = DeclaredLoss(of="cross_entropy", class_weights=(0.5, 1.0, 1000.0))
LABELS = DeclaredLoss(of="binary_cross_entropy", class_weights=(0.5, 1.0, 1000.0))


def focal(outputs: Tensor, labels: Tensor) -> Tensor:
    """Lin et al., ICCV 2017: cross-entropy, less of records that are learnt."""
    losses = cross_entropy(outputs, labels, reduction="none")
    return (1 - torch.exp(-losses)) ** 2 * losses


OWN = DeclaredLoss(of="cross_entropy", function=focal)


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))


@pytest.mark.parametrize(
    ("loss", "y"), [(WEIGHTED, Y), (OWN, Y), (LABELS, HOT)], ids=["weights", "a function", "several labels"]
)
def test_each_records_gradient_is_clipped_with_its_weight(loss: DeclaredLoss, y: Any) -> None:
    whole = summed(model(), X, y, clip_norm=2.0, loss=loss)
    total = summed_by_hand(model(), X, y, clip_norm=2.0, loss=partial(losses_of, loss=loss))
    assert np.linalg.norm(whole - total) <= 1e-3 * np.linalg.norm(total)  # read off float32 parameters
    heavy = int(np.flatnonzero(Y == 2)[0])
    less = summed(model(), np.delete(X, heavy, 0), np.delete(y, heavy, 0), clip_norm=2.0, loss=loss)
    assert np.linalg.norm(whole - less) <= 2.0 * (1 + 1e-3)


def test_a_weight_multiplies_its_class_s_part_of_a_step() -> None:
    local = LocalTraining(optimizer="sgd", learning_rate=0.1, epochs=1, batch_size=40)
    ends = []
    for loss in ("cross_entropy", DeclaredLoss(of="cross_entropy", class_weights=(1.0, 1.0, 3.0))):
        made = model()
        train(made, X, np.full_like(Y, 2), local, loss, np.random.default_rng(0), 0)
        ends.append(made[2].bias.detach() - model()[2].bias.detach())
    torch.testing.assert_close(ends[1], 3 * ends[0], rtol=1e-4, atol=1e-6)


def test_a_loss_of_own_code_sees_one_record_at_a_time() -> None:
    """By construction, whatever a test of it on made-up records finds."""
    rows: list[int] = []

    def watching(outputs: Tensor, labels: Tensor) -> Tensor:
        rows.append(len(outputs))
        return cross_entropy(outputs, labels, reduction="none")

    summed(model(), X, Y, clip_norm=2.0, loss=DeclaredLoss(of="cross_entropy", function=watching))
    assert {*rows} == {1}


def test_clients_of_a_declared_loss_train_by_it(tmp_path: Path) -> None:
    """Clients of a packaged stack train side by side, by the loss of the task alone."""
    ends = []
    for section in ("", "\n[loss]\nclass_weights = [1.0, 50.0]\n"):
        study = parse(text(FEDAVG, rounds=1, extra=section.replace("50.0]", "50.0, " + "1.0, " * 8 + "]")))
        ends.append(run(study, tmp_path / str(len(section))).records[-1]["loss"])
    assert ends[0] != ends[1]


@pytest.mark.parametrize("protocol", ["heads", "fedlog"])
def test_a_head_in_closed_form_takes_no_loss_and_every_remedy_works(protocol: str) -> None:
    def made(options: str, *, weighted: bool) -> None:
        arm = f'[[arm]]\nname = "x"\nprotocol = {options}\n'
        extra = f"\n[loss]\nclass_weights = {[1.0] * 10}\n" if weighted else ""
        composed(parse(text(arm, non_private='["statistic", "update"]', extra=extra)))

    with pytest.raises(ConfigError, match=r"Expected no section \[loss\].* Leave \[loss\] out, or t"):
        made(f'"{protocol}"', weighted=True)
    made(f'"{protocol}"', weighted=False)
    remedy = {"heads": '"fedavg"\nfraction = 1.0', "fedlog": '"fedlog"\nbody = "private"'}
    made(remedy[protocol], weighted=True)


def test_a_record_without_a_label_or_target_has_no_loss() -> None:
    outputs = torch.zeros((2, 3))
    assert losses_of(outputs, torch.tensor([1, 3]), OWN).isnan().tolist() == [False, True]
    filled = DeclaredLoss(of="mse", function=lambda outputs, y: (outputs - y.nan_to_num()).square().mean(1))
    targets = torch.tensor([[1.0, 0.0, 0.0], [torch.nan, 0.0, 0.0]])
    assert losses_of(outputs, targets, filled).isnan().tolist() == [False, True]


BAD: dict[str, tuple[Any, str]] = {
    "a mean": (cross_entropy, r"shape \(\) of torch.float32. Take no mean over records"),
    "of each value": (lambda outputs, y: outputs.square(), r"shape \(4, 3\) .* own values"),
    "a batch's mean": (lambda outputs, y: (outputs - outputs.mean(0)).square().mean(1), "other records"),
    "a batch's weights": (
        lambda outputs, y: cross_entropy(outputs, y, reduction="none") / (y == y[:1]).sum(),
        "other records",
    ),
    "no gradient": (lambda outputs, y: outputs.detach().sum(1), "without a gradient"),
    "failing": (lambda outputs, y: 1 / 0, "ZeroDivisionError"),
    "nan of what is no probability": (
        lambda outputs, y: nll_loss((-outputs.square()).log(), y, reduction="none"),
        "got nan for outputs such as .* Correct it for any output",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_function_that_is_no_loss_of_each_record(case: str) -> None:
    function, said = BAD[case]
    with pytest.raises(ConfigError, match=said):
        require_per_record(DeclaredLoss(of="cross_entropy", function=function), "mine", torch.randn(4, 3))


class Shares(nn.Module):
    """A model that ends in a softmax, or in sigmoids."""

    def __init__(self, inputs: int, outputs: int, *, binary: bool = False) -> None:
        super().__init__()
        self.head, self.last = nn.Linear(inputs, outputs), nn.Sigmoid() if binary else nn.Softmax(1)

    def forward(self, x: Tensor) -> Any:
        return self.last(self.head(x))


class Scores(nn.Module):
    """The remedy: what stands before them."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.head = nn.Linear(inputs, outputs)

    def forward(self, x: Tensor) -> Any:
        return self.head(x)


ON_SHARES = """
from torch.nn.functional import binary_cross_entropy, nll_loss


def nll(outputs, labels):
    return nll_loss(outputs.log(), labels, reduction="none")


def nll_of_scores(outputs, labels):
    return nll(outputs.softmax(1), labels)


def binary(outputs, targets):
    return binary_cross_entropy(outputs, targets, reduction="none").mean(1)


def binary_of_scores(outputs, targets):
    return binary(outputs.sigmoid(), targets)
"""


@pytest.mark.parametrize("private", [False, True], ids=["without", "DP-SGD"])
@pytest.mark.parametrize("name", ["nll", "binary"])
def test_a_loss_on_probabilities_activates_them_itself_and_not_the_model(
    tmp_path: Path, name: str, private: bool
) -> None:
    """All of several labels were said to be there, since each probability is above 0; `predict --proba` took
    a softmax of a softmax."""
    (tmp_path / "shares.py").write_text(ON_SHARES)
    several = name == "binary"
    y = np.column_stack([Y % 2, Y // 2]) if several else Y
    data = f"\n[data]\nclasses = {2 if several else 3}\nclients = 2\npublic_num_examples = 20\n"
    data += "partition = { kind = 'iid' }\n"
    extra = f'\n[loss]\nfunction = "shares:{name}_of_scores"\n' + (DPSGD if private else "")
    whole = written(data=data, model="", extra=extra, rounds=1).replace("fraction = 0.5", "fraction = 1.0")
    if private:
        whole = whole.replace('adjacency = "replace-one"', 'adjacency = "add-remove"')
    study = parse(whole.replace("_of_scores", ""), home=tmp_path, brought=Brought(data=(X, y), model=Shares))
    if several:
        study = replace(study, brought=replace(study.brought, model=partial(Shares, binary=True)))
    with pytest.raises(
        ConfigError, match=r"got numbers from 0 to 1, .* let shares:(nll|binary) take outputs"
    ):
        world.build(study, 0)
    study = parse(whole, home=tmp_path, brought=Brought(data=(X, y), model=Scores))
    assert np.isfinite(run(study, tmp_path / "out").records[-1]["loss"])


def test_a_loss_that_writes_into_its_targets_harms_nobody_or_is_refused() -> None:
    def smoothed(outputs: Tensor, targets: Tensor) -> Tensor:
        targets.mul_(0.9)
        return (outputs - targets).square().mean(1)

    targets = torch.ones((4, 3))
    require_per_record(DeclaredLoss(of="mse", function=smoothed), "mine", torch.randn(4, 3))
    losses_of(torch.randn(4, 3), targets, DeclaredLoss(of="mse", function=smoothed))
    assert (targets == 1).all(), "the next pass would read other targets"

    def broken(outputs: Tensor, targets: Tensor) -> Tensor:
        losses = (outputs * targets).square().mean(1)
        targets.zero_()
        return losses

    with pytest.raises(ConfigError, match=r"RuntimeError: .*inplace operation.* Correct it"):
        require_per_record(DeclaredLoss(of="mse", function=broken), "mine", torch.randn(4, 3))


# In a study -------------------------------------------------------------------------------------------

LOSS = """
import torch
from torch.nn.functional import cross_entropy


def focal(outputs, labels):
    losses = cross_entropy(outputs, labels, reduction="none")
    return (1 - torch.exp(-losses)) ** 2 * losses


def mean(outputs, labels):
    return cross_entropy(outputs, labels)
"""


def with_loss(home: Path, section: str, **changes: str) -> Path:
    path = folder(home, extra=f"\n[loss]\n{section}\n", rounds=1, **changes)
    (home / "loss.py").write_text(LOSS, encoding="utf-8")
    return path


def test_a_study_names_its_loss(tmp_path: Path) -> None:
    study = read(with_loss(tmp_path, 'function = "loss:focal"'))
    assert any(line.startswith("The loss comes from loss:focal in") for line in told(study))
    here = world.build(study, 0)
    assert isinstance(here.problem.loss, DeclaredLoss)
    assert here.problem.loss.function is not None
    assert here.marks.bound["loss_code"]
    assert why_alone(here.problem) == "the study declares a loss"
    # Its code could keep a record for another pass.
    packaged = replace(here.problem, model=ModelConfig(kind="mlp"))
    assert packaged.own_code
    assert not replace(packaged, declared_loss=None).own_code
    weighted = read(with_loss(tmp_path, "class_weights = [1.0, 4.0]"))
    assert world.build(weighted, 0).problem.loss == DeclaredLoss(of="cross_entropy", class_weights=(1.0, 4.0))
    assert data_of(weighted, 0) != data_of(study, 0)


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ("class_weights = [1.0]", "Expected 2 class_weights, one for each class, got 1"),
        ("class_weights = [1.0, 0.0]", "class_weights"),
        ('class_weights = [1.0, 2.0]\nfunction = "loss:focal"', "got both"),
        ("", "got neither"),
        ('function = "focal"', "as `module:name`"),
        ('function = "loss:mean"', "reduction"),
        ('function = "loss:nothing"', r"\[loss\] Expected 'nothing' in"),
        ('function = "nowhere:loss"', r"\[loss\] Expected the module of 'nowhere:loss'"),
    ],
)
def test_a_loss_that_a_study_cannot_use(section: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=said):
        world.build(read(with_loss(tmp_path, section)), 0)


def test_weights_of_several_labels_are_those_of_their_positives() -> None:
    outputs, targets = torch.tensor(X[:, :3]), torch.tensor(HOT)
    chance = outputs.sigmoid()
    positive, negative = -chance.log() * targets, -(1 - chance).log() * (1 - targets)
    weighted = positive * torch.tensor(LABELS.class_weights) + negative
    torch.testing.assert_close(losses_of(outputs, targets, LABELS), weighted.mean(1))
    study = read(EXAMPLES / "several_labels.toml")
    for weights, said in (((1.0, 9.0), ""), ((1.0, 9.0, 9.0), "2 class_weights, one for each label, got 3")):
        changed = replace(study, loss=LossSection(class_weights=weights))
        with pytest.raises(ConfigError, match=said) if said else nullcontext():
            problem = world.build(changed, 0).problem
            assert problem.loss == DeclaredLoss(of="binary_cross_entropy", class_weights=weights)


@pytest.mark.parametrize("last", ["softmax(1)", "sigmoid()"])
def test_a_softmax_before_the_loss_is_told(tmp_path: Path, last: str) -> None:
    path = folder(tmp_path)
    assert not any("softmax" in note for note in world.build(read(path), 0).marks.notes)
    net = tmp_path / "net.py"
    net.write_text(net.read_text().replace(".relu())", f".relu()).{last}"), encoding="utf-8")
    assert any("leave out the model's" in note for note in world.build(read(path), 0).marks.notes)


def test_a_model_that_takes_few_records_at_once_is_refused(tmp_path: Path) -> None:
    path, net = folder(tmp_path), tmp_path / "net.py"
    net.write_text(net.read_text().replace(".relu())", ".relu() + x.new_zeros(3)[: len(x), None])"))
    with pytest.raises(
        ConfigError, match=r"Expected net:Net to take one tensor of records .*, got RuntimeError"
    ):
        world.build(read(path), 0)


def test_targets_without_a_range_are_told(tmp_path: Path) -> None:
    data = '[data]\nsource = "people.csv"\ntarget = ["dose", "age"]\nclasses = 0\n'
    data += 'ignore = ["name", "sex", "ill"]\n'
    path = folder(tmp_path, data=f"\n{data}clients = 4\npartition = {{ kind = 'iid' }}\n")
    table = pd.read_csv(tmp_path / "people.csv").assign(x=np.arange(60) % 7)
    table.to_csv(tmp_path / "people.csv", index=False)
    notes = world.build(read(path), 0).marks.notes
    assert any("'dose', 'age': numbers used without scaling" in note for note in notes)
    scaled = path.read_text().replace("[model]", "[data.columns]\nage = { range = [0, 120] }\n[model]")
    path.write_text(scaled, encoding="utf-8")
    here = world.build(read(path), 0)
    assert not any("'age'" in note for note in here.marks.notes)
    assert float(here.problem.server_y[:, 1].max()) <= 1
