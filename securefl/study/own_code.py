"""Loads a person's own records, features and model into a study, with the code that makes them.

Digests bind a run to these objects. A frozen network computes features client by client; they are cached by
content. A model is tried on blank records before the run.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from securefl.core.errors import ConfigError, DataError
from securefl.core.text_safety import some
from securefl.data import NAMES, Dataset, Split, load
from securefl.data.columns import key_of
from securefl.data.files import cache_folder
from securefl.data.identity import digest_of_clients, digest_of_records
from securefl.data.in_memory import InMemory, given
from securefl.data.networks import agreed, outside
from securefl.data.own import Prepared, from_files, prepare
from securefl.data.schema import Features, Schema
from securefl.data.sides import Sides
from securefl.data.tables import read_table
from securefl.dp.noise import Source
from securefl.engine.party.computing import Records
from securefl.storage.own_code import CodePlace, located, names_code, running
from securefl.storage.own_code import load as load_code
from securefl.study.arm_options import OwnProtocol
from securefl.study.config import Study, place_of, placed
from securefl.study.data_section import DataSection, data_points, path_of
from securefl.study.seeded import Digests
from securefl.training.devices import in_mode
from securefl.training.exported import weights_of
from securefl.training.losses import LOSS_OF, PROBES, DeclaredLoss, TrainingLoss, require_per_record
from securefl.training.models import Architecture, ModelConfig
from securefl.training.networks import Network, digest_of, made_by, named
from securefl.training.own_models import OwnModel, model_points, passed, puts_out_shares
from securefl.training.private_layers import make_private
from securefl.training.private_steps import DPSGD
from securefl.training.reached_code import code_digest
from securefl.training.vector import running_statistics

BROUGHT = "what was handed over in Python"


def data_code(study: Study) -> CodePlace | None:
    """The place of the code that makes the study's records; None without such code. The code does not run.

    Raises ConfigError for code that a study may not name.
    """
    source = study.data.source
    if study.brought.data is not None or source is None or source in NAMES:
        return None
    if names_code(source):
        return located(source, study.home, study.namer)
    point = data_points().get(source)
    return None if point is None else located(point.value, None)


def model_code(study: Study) -> CodePlace | None:
    """The place of the code that makes the study's model; None without such code. The code does not run."""
    if study.brought.model is not None or isinstance(study.model, ModelConfig):
        return None
    kind = study.model.kind or ""
    if names_code(kind):
        return located(kind, study.home, study.namer)
    return located(model_points()[kind].value, None)


def _code(study: Study, named: str | None) -> CodePlace | None:
    """The place of the code that a key of the study names, if it does. The code does not run."""
    return located(named, study.home, study.namer) if named is not None and names_code(named) else None


def _parts(study: Study) -> Iterator[tuple[str, str, Callable[[], CodePlace | None]]]:
    yield "[data]", "The records come from", partial(data_code, study)
    yield "[data]", "The features come from", partial(_code, study, study.data.features)
    yield "[model]", "The model comes from", partial(model_code, study)
    yield "[loss]", "The loss comes from", partial(_code, study, study.loss.function if study.loss else None)
    for arm in study.arms:
        if isinstance(own := arm.options, OwnProtocol):
            yield place_of(arm), f"The protocol of {arm.name} comes from", partial(getattr, own, "place")


def told(study: Study, *, refused: bool = False) -> list[str]:
    """A line for each piece of a person's own code that the study would run. The code does not run here.

    Behind them, a line for each reason why --trust-code was needed. refused: whether code that the study may
    not name has its error for a line. By default the ConfigError is raised.
    """
    lines: list[str] = []
    whys: dict[str, None] = {}
    for where, begins, code in _parts(study):
        try:
            with placed(study, where):
                if (place := code()) is not None:
                    lines.append(f"{begins} {place}.")
                    whys |= dict.fromkeys(place.trusted)
        except ConfigError as error:
            if not refused:
                raise
            lines.append(f"Refused: {error}")
    return lines + [f"Trusted for this run, as --trust-code says: {why}" for why in whys]


def require_no_code(study: Study, run_code: bool) -> None:
    """Raises ConfigError if the study of a run folder names code, unless `run_code`. No code runs here."""
    if not run_code and (lines := told(study, refused=True)):
        raise ConfigError(
            "Expected --run-code, since this needs the code that the run's study names, got none. "
            f"{' '.join(lines)} Read this code, and give --run-code if you would run it."
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Read:
    """A study's records under one seed.

    split: the records. schema: how such a record becomes a model's input. marks: of the records. leaving:
    whether their test part is a share of the clients' own.
    """

    split: Split
    schema: Schema
    marks: Digests
    leaving: bool


def records(study: Study, seed: int, sides: Sides) -> Read:
    """The study's records under this seed.

    sides: puts a record into the training or the test part, by the record's content.
    Raises ConfigError for a source that the study may not name, and DataError for records that do not fit.
    """
    section = study.data
    place = data_code(study)
    if study.packaged:
        # Without noise records are split by place, as the published tables need it.
        own_sides = sides if study.noised else None
        split = load(section.source or "", download=section.download, seed=seed, sides=own_sides)
        schema = Schema(columns=None, shape=split.train.shape)
        marks = _marks_of_records(study, split.train, split.test)
        return Read(split=split, schema=schema, marks=marks, leaving=False)
    from_code = place is not None or study.brought.data is not None
    if from_code and section.csv is not None and not (section.test or "").lower().endswith(".csv"):
        raise ConfigError("[data] Expected no `csv` for records that are no .csv. Leave it out.")
    name, found = _given(study, place, seed)
    if section.test is not None and from_code:
        if found.test is not None:
            raise ConfigError("[data] Expected `test` or records with a test part, got both. Leave it out.")
        path = path_of(section.test, study.home)
        found = replace(found, test=read_table(path, dialect=section.layout.csv), test_name=path.name)
    # The records of clients that are set apart are the test part.
    share = 0.0 if section.test_clients else section.test_share
    made = prepare(found, section.layout, name=name, sides=sides, share=share, claimed=study.claims)
    if study.claims and section.partition.kind == "natural":
        _require_clients(made.split.train, section)
    # With `features`, `network` describes the study's own network, which has a sentence of its own.
    declared = None if section.features is not None else section.network
    network = agreed(found.network, declared, name)
    # A separate test part is the server's. No client's budget covers it.
    marks = _marks_of(study, made, name, place) | _marks_of_records(study, made.whole)
    return Read(
        split=made.split,
        schema=replace(made.schema, network=network),
        marks=marks | _marks_of_network(study, network, name, place),
        leaving=made.parted,
    )


def _marks_of_records(study: Study, *parts: Dataset) -> Digests:
    """The digest of all records for a shared ledger, before they are split, drawn from or corrupted.

    With unit "client", of the clients with their own; none if records are dealt (see `marks_of_deal`).
    """
    if study.privacy.ledger is None or study.dealt_clients:
        return Digests()
    if study.privacy.unit == "record":
        return Digests(records=digest_of_records([(part.x, part.y) for part in parts]))
    owned = [(part, part.groups) for part in parts if part.groups is not None]
    names = sorted({name for _, groups in owned for name in groups.tolist()})
    clients = ([(part.x[groups == name], part.y[groups == name]) for part, groups in owned] for name in names)
    return Digests(records=digest_of_clients(clients))


def marks_of_deal(study: Study, read: Read, train: Dataset, deal: Iterable[NDArray[np.int64]]) -> Digests:
    """The digest for a shared ledger of clients to which a study deals records. deal: the places of each's.

    Raises ConfigError if a key that each run draws for itself decides which records are dealt.
    """
    if study.privacy.ledger is None or not study.dealt_clients:
        return Digests()
    if read.leaving:
        raise ConfigError(
            'Expected a `test` part of its own with a `ledger` of unit "client" and clients that are dealt, '
            "got a share of their records: it is another in each run, and so are the clients, whose epsilons "
            "no ledger can add. Give `test`, or the clients' own records by `client_column`."
        )
    return Digests(records=digest_of_clients([(train.x[own], train.y[own])] for own in deal))


def _require_clients(train: Dataset, section: DataSection) -> None:
    """Raises ConfigError if the set of clients follows from the records, and no list names all clients."""
    if train.groups is None or train.holders:
        return
    if section.client_column is None:
        raise ConfigError(
            "[data] Expected `holders` in a Dataset with groups under a finite epsilon, got none: the set of "
            "clients must not follow from the records. Give the number of clients, or pass a list with the "
            "records of each."
        )
    raise ConfigError(
        f"[data] Expected the clients of {section.client_column!r} by name under a finite epsilon, got none: "
        "the set of clients must not follow from the records. List all clients under "
        f'[data.columns.{key_of(section.client_column)}], such as categories = ["north", "south"].'
    )


def _marks_of_network(study: Study, network: str, name: str, place: CodePlace | None) -> Digests:
    """The marks of the network that computed the records, if a network did or may have done so."""
    # A linear model on numbers without a declared column: the records may be features of a network.
    linear = isinstance(study.model, ModelConfig) and study.model.hidden == () and not study.data.columns
    if not network and not (linear and place is None and study.data.features is None):
        return Digests()
    return _features(network, network, name)


def _features(bound: str, words: str, source: str) -> Digests:
    """The marks of features of records from `source`, by what a run is bound to, and in words."""
    sentence = outside(words, source)
    return Digests(
        bound={"features": hashlib.sha256(bound.encode()).hexdigest()} if bound else {},
        words={"features": words or bound} if bound else {},
        outside=(sentence,) if sentence else (),
    )


def _given(study: Study, place: CodePlace | None, seed: int) -> tuple[str, InMemory]:
    section, layout = study.data, study.data.layout
    thing = study.brought.data
    if thing is not None:
        return BROUGHT, given(_called(thing, study, seed, BROUGHT, None), layout, BROUGHT)
    source = section.source or ""
    if place is None:
        path = path_of(source, study.home)
        test = None if section.test is None else path_of(section.test, study.home)
        return path.name or source, from_files(path, test, layout, lenient=study.claims)
    made = load_code(place)
    if not callable(made):
        raise ConfigError(
            f"[data] Expected {place.name} to be a function that returns records, got {type(made).__name__}."
        )
    return place.name, given(_called(made, study, seed, place.name, place), layout, place.name)


def _called(thing: Any, study: Study, seed: int, name: str, place: CodePlace | None) -> object:
    """The result of a function; any other object as it is. The function gets `seed` and `clients` if it takes
    them."""
    if not inspect.isroutine(thing) and not inspect.isclass(thing):
        return thing
    known = {"seed": seed, "clients": study.data.clients}
    remedy = "Mend the function. It gets `seed` and `clients` if it takes them, and nothing else."
    with running(place, f"{name}: expected records from this function", remedy, error=DataError):
        parameters = inspect.signature(thing).parameters
        return thing(**{key: value for key, value in known.items() if key in parameters})


def _marks_of(study: Study, made: Prepared, name: str, place: CodePlace | None) -> Digests:
    notes = list(made.notes)
    # The digest tells neighbouring data sets apart at any noise, so it is not for publication.
    private = {"data": f"SHA-256 {made.digest[:12]}"}
    if not made.split.train.fitted and place is not None:
        notes.append(
            f"{name} may compute statistics over all records, which no epsilon covers. If it does, have it "
            "declare them by `Dataset(fitted=...)`."
        )
    server = ("The records of the test part are the server's: no epsilon covers them.",)
    found = Digests(
        bound={"data": made.digest},
        words={"data": name},
        private=private,
        notes=tuple(notes),
        outside=server if made.parted and study.claims else (),
    )
    return found | _marks_of_code("data", place)


def _marks_of_code(what: str, place: CodePlace | None) -> Digests:
    """The marks of a person's own code that makes this part of a study, if any does."""
    if place is None:
        return Digests()
    return Digests(bound={f"{what}_code": place.sha256}, words={f"code of the {what}": str(place)})


def declared_loss(study: Study, train: Dataset) -> tuple[DeclaredLoss | None, Digests]:
    """The loss that the study declares, or None. Raises ConfigError for one that it cannot use.

    `architecture` tests a function on the model's outputs.
    """
    if study.loss is None:
        return None, Digests()
    weights, place = study.loss.class_weights, _code(study, study.loss.function)
    count, what = (train.y.shape[1], "label") if train.multi_label else (train.classes, "class")
    if weights and len(weights) != count:
        wanted = f"{count} class_weights, one for each {what}" if count else "no class_weights for numbers"
        raise ConfigError(f"[loss] Expected {wanted}, got {len(weights)}. Correct them.")
    of = LOSS_OF[train.task]
    if place is None:
        return DeclaredLoss(of=of, class_weights=weights), Digests()
    function = load_code(place)
    if not callable(function):
        raise ConfigError(f"[loss] Expected {place.name} to be a function, got {type(function).__name__}.")
    return DeclaredLoss(of=of, function=function), _marks_of_code("loss", place)


def _tried(study: Study, model: Architecture, train: Dataset, outputs: int, loss: DeclaredLoss | None) -> str:
    """A note on the model's outputs for drawn records, or "".

    Raises ConfigError unless a function of the study's own is a loss of each record on these outputs, and of
    scores: accuracy and predictions take an output above 0 for a label, and activate it for a probability.
    """
    name = model.name if isinstance(model, OwnModel) else "the model"
    blank = model.blank(train.shape)
    drawn = torch.rand((PROBES, *train.shape), generator=torch.Generator().manual_seed(0))
    rows = drawn if blank.is_floating_point() else (2 * drawn).to(blank.dtype)
    module = model.build(train.shape, outputs, 0)
    with in_mode(module, training=False), torch.no_grad():
        found = passed(name, module, rows)
    shares = train.task != "regression" and puts_out_shares(module, rows)
    own = study.loss.function if study.loss is not None else None
    if loss is not None and own is not None:
        if shares:
            raise ConfigError(
                f"[model] Expected scores of {name} beside a loss of your own, got numbers from 0 to 1, as "
                "behind a sigmoid or softmax: predictions would take that a second time. Return what stands "
                f"before it, and let {own} take outputs.sigmoid() or outputs.softmax(1)."
            )
        with placed(study, "[loss]"):
            require_per_record(loss, own, found)
    if not shares:
        return ""
    return (
        f"{name} puts out numbers from 0 to 1, as behind a softmax or sigmoid. The loss takes that itself, "
        "so it learns slowly, or not at all: leave out the model's, and take predict_proba for probabilities."
    )


def architecture(
    study: Study, train: Dataset, outputs: int, seed: int, loss: DeclaredLoss | None = None
) -> tuple[Architecture, Digests]:
    """The study's model for these records. A person's own model is tried on blank records first.

    seed: of the model's initial values. loss: the loss that the study declares.
    Raises ConfigError for a model that the study cannot use.
    """
    section, brought = study.model, study.brought.model
    of_weights = Digests()
    if section.weights is None and section.trained_on is not None:
        raise ConfigError(
            "Expected `weights` beside `trained_on`, got none. Name the file, or leave both out."
        )
    if section.weights is not None:
        path = path_of(section.weights, study.home, "[model]")
        section, of_weights = replace(section, weights=str(path)), _weights_marks(study, path)
    if isinstance(section, ModelConfig) and brought is None:
        _require_statistics(study, section, train, outputs)
        if loss is not None:
            _tried(study, section, train, outputs, loss)
        return section, of_weights
    if isinstance(section, ModelConfig):
        raise ConfigError(
            "[model] Expected a study that was read together with the model passed from Python, got one "
            "without it. "
            "Pass the model to the call that runs the study."
        )
    place = model_code(study)
    factory: Any = load_code(place) if place is not None else brought
    name = BROUGHT if place is None else place.name
    if not callable(factory):
        raise ConfigError(
            f"[model] Expected {name} to be a class or function that makes an nn.Module, got "
            f"{type(factory).__name__}."
        )
    model = OwnModel(
        factory=factory,
        name=name,
        options=section.options,
        profiled_layer=section.profiled_layer,
        train=section.train,
        buffers=section.buffers,
        weights=section.weights,
        place=place,
        reads_text=train.x.dtype != np.float32,
    ).resolved(train.shape, outputs, seed)
    _require_statistics(study, model, train, outputs)
    note = _tried(study, model, train, outputs, loss)
    if study.private is not None:
        _require_private(model, train, outputs, study.private, loss)
    marks = of_weights | _model_marks(model, train, outputs, seed)
    return model, marks | Digests(notes=(note,) if note else ())


def _weights_marks(study: Study, path: Path) -> Digests:
    """The marks of a file of initial weights.

    Raises ConfigError unless the study says what is behind them, and the errors of `weights_of`.
    """
    origin = study.model.trained_on
    if origin is None or (origin == "ledger" and study.privacy.ledger is None):
        raise ConfigError(
            f"Expected a word on the records that {path.name} was trained on, got "
            f"{'none' if origin is None else 'a ledger that [privacy] does not name'}: no charge of this "
            'run covers them. Set trained_on = "public" under [model] if they are of nobody here, or "ledger"'
            " if they are of these clients, and the `ledger` of that run under [privacy], which counts both."
        )
    # Before it is read: a pickle, a pipe and what is too large are refused without a digest.
    card = weights_of(path).card
    run = _run_behind(path, card) if origin == "ledger" else _run_named(card)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    behind = {
        "public": "that are declared public: no epsilon covers these",
        "ledger": "of these clients: the shared ledger has the epsilon of both runs together",
    }
    return Digests(
        bound={"weights": digest},
        words={"initial weights": f"{path.name} (SHA-256 {digest[:12]})"},
        outside=(f"The initial weights, {path.name}, were trained on records {behind[origin]}.",),
        behind=run,
    )


def _run_named(card: Mapping[str, Any] | None) -> str:
    """The identity of the run that a card names, of a whole model or a part; empty without one."""
    match card:
        case {"ledger": {"run": str(run)}}:
            return run
    return ""


def _run_behind(path: Path, card: Mapping[str, Any] | None) -> str:
    """The identity of the run that an exported model is of. `accounted` looks for it in the shared ledger.

    Raises ConfigError unless the file has a card, and the epsilon of that run covers all its values.
    """
    match card:
        case {"part": "whole", "ledger": {"run": str(run)}}:
            return run
        case {"part": "client"}:
            got = "the model of one client, which no epsilon covers. Export the run without --client"
        case {"ledger": _}:
            got = "a card without its run, or a part of a model. Export the run again, whole"
        case _:
            got = "a file without a card. Take what `securefl export` wrote of that run"
    raise ConfigError(
        f'Expected {path.name} as the export of a run in the shared ledger beside trained_on = "ledger", got '
        f'{got}; or set trained_on = "public" if the records behind it are of nobody here.'
    )


def _require_statistics(study: Study, model: ModelConfig | OwnModel, train: Dataset, outputs: int) -> None:
    """Raises ConfigError if the file of the weights lacks running statistics, or does not fit the model.

    Private training replaces batch norm by group norm, which has none, so its export has none either.
    """
    if model.weights is None:
        return
    wanted = running_statistics(model.build(train.shape, outputs, 0)).keys()
    if study.private is None and (gone := sorted(wanted - weights_of(Path(model.weights)).tensors.keys())):
        raise ConfigError(
            f"[model] Expected a file of `weights` with the statistics of batch norm, got {model.weights} "
            f"without {some(gone, 3)}. If it is a private export, train it under [dpsgd], where group norm "
            "has none. If its clients kept them, export one client's, by --client."
        )


def protocols(study: Study) -> Digests:
    """The marks of the arms' protocols that are a person's own."""
    code, words = list[Any](), dict[str, str]()
    for arm in study.arms:
        if isinstance(own := arm.options, OwnProtocol):
            with placed(study, place_of(arm)):
                place = own.place
            code.append(own.brought if place is None else place.sha256)
            words[f"code of the protocol of {arm.name}"] = str(place or f"{own.name}, {BROUGHT}")
    return Digests(bound={"protocol_code": code_digest(*code)}, words=words) if words else Digests()


def _require_private(
    model: OwnModel, train: Dataset, outputs: int, config: DPSGD, declared: DeclaredLoss | None
) -> None:
    """Raises ConfigError if one step of private training, with a record of zeros in it, fails."""
    from securefl.training.dpsgd import train_privately  # Opacus takes two seconds to import

    x = model.blank(train.shape).numpy()
    y = np.zeros(1, np.int64) if train.classes else np.zeros((1, outputs), np.float32)
    loss: TrainingLoss = declared or LOSS_OF[train.task]
    try:
        module, _ = make_private(model.build(train.shape, outputs, 0))
        with torch.random.fork_rng(devices=[]):
            train_privately(module, x, y, replace(config, steps=1, sampling_rate=1.0), loss, Source())
    except DataError:  # a diverged step does not show that the layers are unusable
        return
    except Exception as error:  # a person's own layers may raise any error under Opacus's hooks
        raise ConfigError(
            f"Expected {model.name} to train with [dpsgd], got {type(error).__name__}: {error} Take other "
            "layers, or leave [dpsgd] out."
        ) from error


def _model_marks(model: OwnModel, train: Dataset, outputs: int, seed: int) -> Digests:
    module = model.build(train.shape, outputs, seed)
    digest = digest_of(module)
    if model.place is not None:
        # The model's digest too: the model may depend on modules that the named file imports.
        return _marks_of_code("model", model.place) | Digests(bound={"model": digest})
    # A factory may look its classes up by a computed name.
    kinds = sorted({type(part) for part in module.modules()}, key=lambda kind: kind.__qualname__)
    bound = {"model_code": code_digest(model.factory, *kinds), "model": digest}
    return Digests(bound=bound, words={"model": f"{model.name} (SHA-256 {digest[:12]})"})


Told = Callable[[int, int], None]
"""A callback: (number of records whose features are computed, number of all records)."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Featured:
    """Records whose inputs are features.

    records: each client's. test: the server's. marks: of the network. network: the network, or None if the
    study names none.
    """

    records: Sequence[Records]
    test: Dataset
    marks: Digests
    network: Features | None = None


def featured(study: Study, records: Sequence[Records], test: Dataset, tell: Told) -> Featured:
    """The records, with features in place of inputs if the study names a network.

    A client's features are computed from its records alone, and cached under the digests of both records and
    network. Raises ConfigError if the network is no module or does not read the records, and DataError if
    cached features are damaged or not finite.
    """
    if study.data.features is None:
        return Featured(records=records, test=test, marks=Digests())
    network, place = _network(study)
    width = network.width(test.shape)
    total, done = len(test) + sum(len(x) for x, _ in records), 0

    def of(x: Any, lenient: bool) -> Any:
        nonlocal done
        if not len(x):
            return np.empty((0, width), np.float32)
        folder = cache_folder() / "features"
        found = network.features(x, folder, lambda own: tell(done + own, total), lenient=lenient)
        done += len(x)
        return found

    made = [(of(x, study.claims), y) for x, y in records]
    tested = replace(test, x=of(test.x, test.lenient), groups=None, holders=0)
    return Featured(
        records=made,
        test=tested,
        marks=_features(network.name, network.about, test.name) | _marks_of_code("features", place),
        network=Features(word=study.data.features, name=network.name, about=network.about),
    )


def _network(study: Study) -> tuple[Network, CodePlace | None]:
    place = _code(study, study.data.features)
    network = named(study.data.features or "") if place is None else made_by(place, study.data.network or "")
    if network.tokens is not None:
        raise ConfigError(
            f"[data] Expected features of a network that reads numbers, got {study.data.features!r}, "
            "which reads text. Compute a file of them with: securefl features TABLE --text COLUMN"
        )
    return network, place
