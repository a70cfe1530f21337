"""Callbacks of scikit-learn: a subcontext per iteration, scores while training, early ends, and Ctrl-C."""

import numpy as np
import pytest
from scipy import sparse
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from estimators import ChicleLogisticRegression, ChicleSVM
from tests.estimators import problems

callback = pytest.importorskip("sklearn.callback", reason="scikit-learn 1.9 and newer have callbacks")


class Recorder:
    """Notes every hook, and does what it is told at the end of an iteration.

    `at_iteration` maps the 0-based number of an iteration to a function whose result the hook returns.
    """

    def __init__(self, at_iteration=None):
        self.hooks = []
        self.estimators = []
        self.at_iteration = at_iteration or {}

    def setup(self, estimator, context):
        self.hooks.append("setup")

    def teardown(self, estimator, context):
        self.hooks.append("teardown")

    def on_fit_task_begin(self, estimator, context, *, X=None, y=None):
        assert X.shape[0] == 569
        self.hooks.append(f"begin {context.task_name} {context.task_id}")

    def on_fit_task_end(self, estimator, context, *, metadata=None, fitted_estimator=None):
        self.hooks.append(f"end {context.task_name} {context.task_id}")
        if context.task_name == "iteration":
            self.metadata = metadata
            self.estimators.append(fitted_estimator)
            act = self.at_iteration.get(context.task_id)
            return act() if act else None
        return None


class PropagatedRecorder(Recorder):
    """The same, on a meta-estimator."""

    max_propagation_depth = None

    def on_fit_task_begin(self, estimator, context):
        self.hooks.append(f"begin {context.estimator_name} {context.task_name}")

    def on_fit_task_end(self, estimator, context):
        self.hooks.append(f"end {context.estimator_name} {context.task_name}")


class OtherData(Recorder):
    """Records hooks without a look at the data."""

    def on_fit_task_begin(self, estimator, context):
        self.hooks.append(f"begin {context.task_name} {context.task_id}")


@pytest.mark.parametrize("estimator_class", [ChicleSVM, ChicleLogisticRegression])
def test_every_iteration_is_a_task_with_a_begin_and_an_end(estimator_class):
    """In order, as many as n_iter_, inside one fit task; none is left over."""
    X, y = problems.cancer()
    recorder = Recorder()
    model = estimator_class(C=0.1).set_callbacks(recorder).fit(X, y)
    iterations = [f"{hook} iteration {number}" for number in range(model.n_iter_) for hook in ("begin", "end")]
    assert recorder.hooks == ["setup", "begin fit 0", *iterations, "end fit 0", "teardown"]


def test_the_fitted_estimator_of_an_iteration_can_predict():
    """It gets better, and has weights of empty columns, too; the last one is the model itself."""
    X, y = problems.cancer()
    X = sparse.csr_matrix(X)
    X.resize(569, 3000)
    recorder = Recorder()
    model = ChicleLogisticRegression(tol=1e-9).set_callbacks(recorder).fit(X, y)
    fitted = recorder.estimators
    assert model.n_iter_ > 1
    assert [each.n_iter_ for each in fitted] == list(range(1, model.n_iter_ + 1))
    assert {each.coef_.shape for each in fitted} == {(1, 3000)}
    np.testing.assert_array_equal(fitted[-1].coef_, model.coef_)
    np.testing.assert_array_equal(fitted[-1].predict(X), model.predict(X))
    assert not np.array_equal(fitted[0].coef_, fitted[-1].coef_)


def test_sample_weights_reach_the_callbacks_as_metadata():
    """So that a monitor scores with them."""
    X, y = problems.cancer()
    weights = np.linspace(0, 1, len(y))
    recorder = Recorder()
    ChicleSVM(C=0.1).set_callbacks(recorder).fit(X, y, weights)
    np.testing.assert_array_equal(recorder.metadata["sample_weight"], weights)


def test_a_callback_ends_the_fit_with_a_true_certificate():
    """The gap belongs to the model at that iteration although the trainer had not asked for a certificate there."""
    X, y = problems.cancer()
    recorder = Recorder({0: lambda: True})
    model = ChicleSVM(C=1000.0, tol=1e-9, store_duals=True).set_callbacks(recorder).fit(X, y)
    assert model.n_iter_ == len(model.history_) == 1
    assert recorder.hooks[-3:] == ["end iteration 0", "end fit 0", "teardown"]
    gap = problems.recomputed_gaps(model, X, y)[0]
    assert gap > model.tol
    assert model.duality_gap_ == pytest.approx(gap, rel=1e-9)
    assert model.history_[-1].figures["duality_gap"] == model.duality_gap_


def test_an_error_in_a_callback_comes_out_of_fit():
    """Unchanged, and teardown is called."""
    X, y = problems.cancer()

    def fail():
        raise RuntimeError("the disk is full")

    recorder = Recorder({0: fail})
    with pytest.raises(RuntimeError, match="the disk is full"):
        ChicleSVM(C=1.0).set_callbacks(recorder).fit(X, y)
    assert recorder.hooks[-1] == "teardown"


def test_callbacks_reach_us_through_a_grid_search_over_pipelines():
    """Our iterations hang in the tree of scikit-learn's own tasks."""
    X, y = problems.cancer()
    recorder = PropagatedRecorder()
    pipeline = make_pipeline(StandardScaler(), ChicleSVM(random_state=0))
    search = GridSearchCV(pipeline, {"chiclesvm__C": [0.01, 0.1]}, cv=2).set_callbacks(recorder)
    search.fit(X, y)
    assert recorder.hooks.count("begin ChicleSVM fit") == recorder.hooks.count("end ChicleSVM fit") == 5
    begun = recorder.hooks.count("begin ChicleSVM iteration")
    assert begun == recorder.hooks.count("end ChicleSVM iteration") >= 5
