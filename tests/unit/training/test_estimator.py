"""scikit-learn's own checks of estimators, on models that were exported and loaded.

A loaded model is fitted already. So that the checks can hand it records of any shape, `fit` of this test's
estimators trains a logistic regression by scikit-learn, writes it as an exported model, and loads that file.
All else is the loaded model's.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, clone
from sklearn.inspection import permutation_importance
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils import estimator_checks
from sklearn.utils.estimator_checks import parametrize_with_checks
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, check_X_y
from support.exported_cards import CARD, MODEL, RECORDS

from securefl.core.errors import ConfigError, DataError
from securefl.training.exported import save
from securefl.training.trained import Trained, load


def exported(weight: Any, bias: Any, **records: Any) -> Trained:
    """A linear model (outputs, inputs) as a loaded file."""
    weight = np.asarray(weight, np.float32)
    task = records.pop("task", "classification")
    model = {**MODEL, "hidden": [], "shape": [weight.shape[1]], "outputs": len(weight), "task": task}
    card = {**CARD, "model": model, "records": {**RECORDS, "shape": [weight.shape[1]], **records}}
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        save(path, {"fc1.weight": weight, "fc1.bias": np.asarray(bias, np.float32)}, card)
        return load(path)


def columns(x: Any) -> Any:
    names = list(getattr(x, "columns", []))
    return (
        [{"name": name} for name in names] if names and all(isinstance(name, str) for name in names) else None
    )


class Loaded(BaseEstimator):
    """What both kinds share: the loaded model answers, and says what it read."""

    @property
    def n_features_in_(self) -> int:
        return self.trained_.n_features_in_

    @property
    def feature_names_in_(self) -> Any:
        return self.trained_.feature_names_in_

    def predict(self, x: Any) -> Any:
        return self._asked(x).predict(x)

    def _asked(self, x: Any) -> Trained:
        check_is_fitted(self, "trained_")
        return self.trained_


class Classifier(ClassifierMixin, Loaded):
    def fit(self, x: Any, y: Any) -> Classifier:
        rows, y = check_X_y(x, y, estimator=self)
        check_classification_targets(y)
        labels, codes = np.unique(y, return_inverse=True)
        if len(labels) < 2:
            raise ValueError(f"Expected at least 2 classes, got {len(labels)} class.")
        fitted = LogisticRegression(C=100, max_iter=1000).fit(rows, codes)
        two = len(labels) == 2
        weight = np.concatenate([0 * fitted.coef_, fitted.coef_]) if two else fitted.coef_
        bias = np.concatenate([0 * fitted.intercept_, fitted.intercept_]) if two else fitted.intercept_
        self.trained_ = exported(weight, bias, labels=labels.tolist(), columns=columns(x))
        return self

    @property
    def classes_(self) -> Any:
        return self.trained_.classes_

    def predict_proba(self, x: Any) -> Any:
        return self._asked(x).predict_proba(x)


class Regressor(RegressorMixin, Loaded):
    def fit(self, x: Any, y: Any) -> Regressor:
        rows, y = check_X_y(x, y, estimator=self, y_numeric=True)
        fitted = LinearRegression().fit(rows, y)
        self.trained_ = exported(
            fitted.coef_[None], [fitted.intercept_], task="regression", columns=columns(x)
        )
        return self


SKIPPED = {
    "check_n_features_in_after_fitting": "it wants scikit-learn's wording of the refusal, a ValueError too"
}
"""The checks that do not apply, with the reason of each. scikit-learn itself skips
`check_array_api_input`, which needs SCIPY_ARRAY_API: a loaded model computes on the CPU."""


def close(found: Any, expected: Any, rtol: float | None = None, atol: float = 0, err_msg: str = "") -> None:
    """scikit-learn's tolerance for float32, also of probabilities: they are float64 of float32 outputs.

    A kernel of float32 sums in an order that follows the number of rows and their alignment. So the last bits
    of a record's outputs depend on its batch, on some processors.
    """
    np.testing.assert_allclose(found, expected, max(rtol or 0, 1e-4), max(atol, 1e-6), err_msg=err_msg)


@parametrize_with_checks([Classifier(), Regressor()], expected_failed_checks=lambda estimator: SKIPPED)
def test_scikit_learns_checks_of_estimators(
    estimator: Any, check: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(estimator_checks, "assert_allclose", close)
    monkeypatch.setattr(estimator_checks, "assert_allclose_dense_sparse", close)
    check(estimator)


def test_a_records_outputs_depend_on_its_batch_by_the_rounding_of_its_own_sum_alone() -> None:
    rng = np.random.default_rng(0)
    weight, bias = rng.normal(size=(3, 5)).astype(np.float32), rng.normal(size=3).astype(np.float32)
    x, model = rng.normal(size=(300, 5)).astype(np.float32), exported(weight, bias)
    alone = [model.outputs(row[None])[0] for row in x]
    exact, sizes = x.astype(float) @ weight.T.astype(float) + bias, abs(x) @ abs(weight.T) + abs(bias)
    for found in (model.outputs(x), model.outputs(x[::-1])[::-1], np.array(alone)):
        # In any order, each of the five terms and the bias takes part in at most six roundings.
        assert (abs(found - exact) <= 6 * 2.0**-24 * sizes * (1 + 1e-5)).all()


MIXED = exported(
    [[0, 0, 0, 0, 0], [9, 0, -2, 2, 0.5]],
    [0, -4.01],  # at -4 a record of 80 years would be a tie, and its label a matter of rounding
    columns=[
        {"name": "age", "range": [0, 120], "missing": 40, "indicator": True},
        {"name": "sex", "categories": ["f", "m"]},
        {"name": "dose"},
    ],
    labels=["no", "yes"],
    targets=[{"name": "ill"}],
)
AGES = np.random.default_rng(0).integers(0, 120, 200)
FRAME = pd.DataFrame({"dose": 0.0, "age": AGES, "sex": np.where(AGES % 3, "f", "m"), "unread": "x"})
LABELS = np.where(AGES > 60, "yes", "no")


def test_a_table_of_words_and_gaps_gets_the_tables_labels() -> None:
    found = MIXED.predict(FRAME)
    assert set(found) == {"no", "yes"}
    assert MIXED.score(FRAME, LABELS) == (found == LABELS).mean() > 0.7
    shares = MIXED.predict_proba(FRAME)
    assert shares.dtype == np.float64
    assert shares.sum(1) == pytest.approx(np.ones(200))
    assert (MIXED.classes_[shares.argmax(1)] == found).all()
    assert MIXED.feature_names_in_.tolist() == ["age", "sex", "dose"]
    rows = FRAME[["age", "sex", "dose"]]
    assert (MIXED.predict(rows.to_dict("records")) == found).all()
    assert (MIXED.predict(rows.to_numpy()) == found).all(), "an array has the columns in the card's order"
    assert (MIXED.predict(MIXED.inputs(FRAME)) == found).all(), "and may be the model's input"
    gaps = rows.assign(age=None)
    assert MIXED.inputs(gaps)[0, :2].tolist() == pytest.approx([1 / 3, 1])


def test_scikit_learns_tools_take_a_trained_model() -> None:
    importance = permutation_importance(MIXED, FRAME, LABELS, n_repeats=2, random_state=0)
    assert importance.importances_mean.argmax() == list(FRAME).index("age")
    assert importance.importances_mean[list(FRAME).index("unread")] == 0
    assert cross_val_score(MIXED, FRAME, LABELS, cv=2).mean() == pytest.approx(MIXED.score(FRAME, LABELS))
    piped = make_pipeline(FunctionTransformer(lambda frame: frame.assign(dose=0)), MIXED).fit(FRAME, LABELS)
    assert (piped.predict(FRAME) == MIXED.predict(FRAME)).all()
    assert clone(MIXED) is MIXED


def test_an_output_that_is_no_number_is_no_label() -> None:
    huge = exported([[3e38, -3e38], [0, 0]], [0, 0])
    assert huge.predict(np.array([[0.1, 0.0], [0.0, 0.1]])).tolist() == [0, 1]
    with pytest.raises(DataError, match="got nan for row 2"):
        huge.predict(np.array([[0.0, 0.0], [10.0, 10.0]]))


def test_an_array_that_could_be_either_is_refused() -> None:
    """The trap: numbers scaled once more are still numbers, and the answer would be wrong without a word."""
    scaled = exported([[0.0], [1.0]], [0, -0.5], columns=[{"name": "age", "range": [0, 120]}])
    with pytest.raises(DataError, match="column names"):
        scaled.predict(np.array([[61.0]]))
    assert scaled.predict(pd.DataFrame({"age": [59, 61]})).tolist() == [0, 1]
    plain = exported([[0.0], [1.0]], [0, -60], columns=[{"name": "age"}])
    assert plain.predict(np.array([[59.0], [61.0]])).tolist() == [0, 1]


def test_a_regression_answers_in_the_tables_units() -> None:
    target = [{"name": "price", "range": [100, 300]}]
    model = exported([[1.0]], [0.0], task="regression", columns=[{"name": "size"}], targets=target)
    assert model.predict(pd.DataFrame({"size": [0, 0.5]})).tolist() == [100, 200]
    assert model.score(pd.DataFrame({"size": [0, 0.5, 1.0]}), [100, 200, 300]) == 1
    with pytest.raises(ConfigError, match="Take `predict`"):
        model.predict_proba(pd.DataFrame({"size": [0]}))
    with pytest.raises(AttributeError):
        _ = model.classes_
