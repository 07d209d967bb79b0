"""`securefl.run`: what may be run, what is left behind, who is told, and what stops it."""

from __future__ import annotations

import _thread
import logging
import signal
import threading
import tomllib
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from support.every import every
from support.tiny_study import FEDAVG, text

import securefl
from securefl.api.running import Run
from securefl.core.errors import ConfigError, DataError
from securefl.study.config import parse
from securefl.study.interruption import Interrupted
from securefl.study.round_events import Round

ONE = text(FEDAVG)
SURE = text(FEDAVG, rounds=1).replace("learning_rate = 0.2", "learning_rate = 0.8")
"""One round that teaches more than a constant answer, on any processor: otherwise a run warns."""
TWO = text(FEDAVG, '[[arm]]\nname = "Own bodies"\nprotocol = "lg_fedavg"\n', rounds=3)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return securefl.run(TWO, out=tmp_path_factory.mktemp("run"))


class Noted:
    """A callback that notes what it is told, and may raise in a round."""

    def __init__(self, fails: int | None = None) -> None:
        self.told: list[tuple[str, int, int]] = []
        self._fails = fails

    def __call__(self, arm: str, seed: int, round_: Round) -> None:
        self.told.append((arm, seed, round_.number))
        if round_.number == self._fails:
            raise ZeroDivisionError("in the caller's own code")


def test_it_says_what_the_files_say(finished: Run) -> None:
    written = pd.read_csv(finished.folder / "metrics.csv")
    assert list(finished.metrics.columns) == list(written.columns)
    assert finished.metrics["accuracy"].tolist() == pytest.approx(written["accuracy"].tolist(), nan_ok=True)
    assert finished.epsilon.loc["FedAvg"].tolist() == [float("inf"), 0.0, float("inf")]
    assert list(finished.epsilon.columns) == ["server", "key-holder", "others"]
    assert finished.report().is_file()
    assert str(finished.report()) in str(finished)
    assert "0." in finished._repr_html_()
    assert "∞" in finished._repr_html_()


def test_a_model_predicts_as_well_as_the_table_says(finished: Run, tmp_path: Path) -> None:
    model = finished.model("FedAvg")
    x, y = finished.test_records()
    last = finished.metrics.query("arm == 'FedAvg'")["accuracy"].iloc[-1]
    assert (model.predict(x) == y).mean() == last
    again = securefl.load(finished.export(tmp_path / "m.safetensors", "FedAvg"))
    assert (again.predict(x) == model.predict(x)).all()
    assert isinstance(model, torch.nn.Module)
    assert finished.model("Own bodies", client=2).predict(x).shape == y.shape
    with pytest.raises(ConfigError, match="which of FedAvg, Own bodies"):
        finished.model()
    with pytest.raises(ConfigError, match="Name one client"):
        finished.model("Own bodies").predict(x)
    with pytest.raises(ConfigError, match="a seed among 3"):
        finished.test_records(4)


@every("form", ["path", "text path", "mapping", "text", "study"])
def test_a_study_comes_in_any_form(form: str, finished: Run, tmp_path: Path) -> None:
    """The same study in each: a finished run is gone on with, and nothing is played again."""
    (tmp_path / "mine.toml").write_text(TWO)
    forms: dict[str, Any] = {
        "path": tmp_path / "mine.toml",
        "text path": str(tmp_path / "mine.toml"),
        "text": TWO,
        "study": parse(TWO),
    }
    noted = Noted()
    if form == "mapping":  # which is another text
        with pytest.raises(ConfigError, match="another configuration"):
            securefl.run(tomllib.loads(TWO), out=finished.folder)
        return
    securefl.run(forms[form], out=finished.folder, callback=noted)
    assert noted.told == []


@pytest.mark.filterwarnings("ignore:An arm of Run:RuntimeWarning")
def test_a_text_names_files_of_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "people.csv").write_text("age,label\n" + "".join(f"{age},{age % 2}\n" for age in range(40)))
    own = ONE.replace('source = "digits"', 'source = "people.csv"\ntarget = "label"\nclasses = 2')
    securefl.run(own, out="out", progress=False)
    monkeypatch.chdir("/")
    with pytest.raises(ConfigError, match="Expected source among"):
        securefl.run(own, out=tmp_path / "other")
    again = securefl.run(tmp_path / "out" / "study.toml", out=tmp_path / "out")
    assert len(again.metrics) == 2, "the run folder notes the working folder"


def test_a_mapping_may_hold_what_toml_has_not(tmp_path: Path) -> None:
    table = tomllib.loads(SURE)
    table["study"]["seeds"] = (3,)
    table["study"]["rounds"] = torch.tensor(1).numpy()[()]
    assert len(securefl.run(table, out=tmp_path).metrics) == 1


@every(
    ("study", "match"),
    [
        ("gas_turbin", "a file or a packaged study, got 'gas_turbin'"),
        (Path("nothing.toml"), "a file or a packaged study"),
        (3, "a mapping, a text or a Study, got int"),
        (None, "a mapping, a text or a Study, got NoneType"),
        ({}, "Missing section"),
        ({"study": None}, "as TOML has them"),
        ({"study": {"name": object()}}, "as TOML has them"),
        ("[study]\nname = ", "Expected TOML"),
        (ONE + '\n[sweep.grid]\n"study.rounds" = [1]\n', "securefl.run_sweep"),
        (ONE.replace("fedavg", "fedavq"), "did you mean `fedavg`"),
    ],
)
def test_what_is_no_study_is_refused(study: Any, match: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=match):
        securefl.run(study, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@every("workers", [0, -1, "two", 2**40])
def test_workers_are_checked(workers: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="workers"):
        securefl.run(ONE, out=tmp_path, workers=workers)


def test_without_out_it_runs_where_the_command_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert securefl.run(SURE).folder == tmp_path / "runs" / "tiny"


def test_it_leaves_threads_handlers_and_streams_as_they_were(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.set_num_threads(2)
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    inside: list[int] = []
    try:
        securefl.run(ONE, out=tmp_path, callback=lambda *_: inside.append(torch.get_num_threads()))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    assert inside == [1, 1]
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == handlers
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", ""), "no terminal, and nothing was asked to be shown"


def test_progress_is_printed_where_it_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    securefl.run(ONE, out=tmp_path, progress=True)
    assert "FedAvg             round    2 of 2  acc" in capsys.readouterr().err


def test_a_callback_is_told_each_round_once_over_several_runs(tmp_path: Path) -> None:
    first, second, beside = Noted(fails=2), Noted(), Noted()
    with pytest.raises(ZeroDivisionError):
        securefl.run(TWO, out=tmp_path, callback=first)
    securefl.run(TWO, out=tmp_path, callback=[second, beside])
    assert first.told == [("FedAvg", 3, 1), ("FedAvg", 3, 2)]
    assert second.told == [("FedAvg", 3, 3), *(("Own bodies", 3, number) for number in (1, 2, 3))]
    assert beside.told == second.told


def test_lanes_tell_here_and_once(tmp_path: Path) -> None:
    noted = Noted()
    securefl.run(TWO, out=tmp_path, workers=2, callback=noted)
    assert sorted(noted.told) == [(arm, 3, n) for arm in ("FedAvg", "Own bodies") for n in (1, 2, 3)]


def test_an_interruption_finishes_the_round_and_the_same_call_goes_on(tmp_path: Path) -> None:
    """As a notebook's stop button sends it, in the main thread."""
    noted = Noted()

    def stop(arm: str, seed: int, round_: Round) -> None:
        noted(arm, seed, round_)
        _thread.interrupt_main()

    # A shell has the jobs in its background ignore SIGINT. A run respects that, and would not end.
    outside = signal.signal(signal.SIGINT, signal.default_int_handler)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt) as caught:
        securefl.run(TWO, out=tmp_path, callback=stop, workers=1)
    assert isinstance(caught.value, Interrupted)
    assert "Make the same call to resume." in caught.value.__notes__[0]
    assert signal.getsignal(signal.SIGINT) is before
    signal.signal(signal.SIGINT, outside)
    assert noted.told == [("FedAvg", 3, 1)]
    again = Noted()
    securefl.run(TWO, out=tmp_path, callback=again)
    assert again.told[0] == ("FedAvg", 3, 2)


def test_it_runs_in_another_thread(tmp_path: Path) -> None:
    found: list[Run] = []
    worker = threading.Thread(target=lambda: found.append(securefl.run(ONE, out=tmp_path)))
    worker.start()
    worker.join()
    assert len(found[0].metrics) == 2


@every(
    "options",
    [{"out": 3}, {"out": ""}, {"callback": 3}, {"callback": [3]}, {"callback": None}, {"study": "x" * 5000}],
)
def test_odd_arguments_are_explained_before_anything_runs(options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Expected"):
        securefl.run(**{"study": ONE, "out": tmp_path / "run", **options})
    assert not (tmp_path / "run").exists()


@every("options", [{"arm": 3}, {"seed": "x"}, {"seed": 1.5}, {"client": "0"}, {"client": -1}])
def test_odd_models_are_explained(options: dict[str, Any], finished: Run) -> None:
    with pytest.raises(ConfigError, match="Expected"):
        finished.model(**{"arm": "Own bodies", **options})


def test_an_unknown_method_of_calibration_is_refused() -> None:
    with pytest.raises(ConfigError, match="exact, paper, got"):
        securefl.calibrate(1.0, 1e-5, method="best")  # type: ignore[arg-type]


def test_another_studys_folder_is_refused(finished: Run) -> None:
    with pytest.raises(ConfigError, match="another configuration"):
        securefl.run(ONE, out=finished.folder)


def test_finished_rounds_and_warnings_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="securefl"):
        securefl.run(ONE, out=tmp_path)
        lines = [record.getMessage() for record in caplog.records]
        lines = [line for line in lines if "answered" not in line]  # who took no part, of each round
        assert [line[:28] for line in lines] == [f"FedAvg, seed 3, round {n} of 2" for n in (1, 2)]
        caplog.clear()
        securefl.run(ONE, out=tmp_path)
    assert not caplog.records, "rounds of an earlier run are not news"


def test_a_library_is_quiet_unless_its_caller_logs() -> None:
    handlers = logging.getLogger("securefl").handlers
    assert [type(handler) for handler in handlers] == [logging.NullHandler]


def test_a_round_says_what_its_docstring_lists(tmp_path: Path) -> None:
    rounds: list[Round] = []
    securefl.run(ONE, out=tmp_path, callback=lambda arm, seed, found: rounds.append(found))
    assert [found.last for found in rounds] == [False, True]
    assert (rounds[0].number, rounds[0].rounds, rounds[0].asked, rounds[0].ended) == (1, 2, 2, False)
    assert set(rounds[0].epsilon) == {"server", "key-holder", "others"}
    assert rounds[0].bytes_up > 0
    with pytest.raises(AttributeError):
        rounds[0].number = 2  # type: ignore[misc]


@every("path", [None, 3, "", "a\0b", "/proc/securefl/model.safetensors"])
def test_an_export_to_an_odd_place_says_so(path: Any, finished: Run) -> None:
    with pytest.raises((ConfigError, DataError), match=r"`path`|cannot be written"):
        finished.export(path, "FedAvg")
