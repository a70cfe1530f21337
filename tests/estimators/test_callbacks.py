"""Callbacks of scikit-learn: a subcontext per iteration, scores while training, early ends, and Ctrl-C."""

import signal

import numpy as np
import pytest
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
        assert X.shape == (569, 30)
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


@pytest.mark.parametrize("estimator_class", [ChicleSVM, ChicleLogisticRegression])
def test_every_iteration_is_a_task_with_a_begin_and_an_end(estimator_class):
    """In order, as many as n_iter_, inside one fit task; none is left over."""
    X, y = problems.cancer()
    recorder = Recorder()
    model = estimator_class(C=0.1).set_callbacks(recorder).fit(X, y)
    iterations = [f"{hook} iteration {number}" for number in range(model.n_iter_) for hook in ("begin", "end")]
    assert recorder.hooks == ["setup", "begin fit 0", *iterations, "end fit 0", "teardown"]


def test_the_fitted_estimator_of_an_iteration_can_predict():
    """It gets better; the last one is the model itself."""
    X, y = problems.cancer()
    recorder = Recorder()
    model = ChicleLogisticRegression(tol=1e-9).set_callbacks(recorder).fit(X, y)
    fitted = recorder.estimators
    assert model.n_iter_ > 1
    assert [each.n_iter_ for each in fitted] == list(range(1, model.n_iter_ + 1))
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


@pytest.mark.usefixtures("patient_ctrl_c")
@pytest.mark.parametrize("iteration", [0, 1])
def test_ctrl_c_leaves_a_usable_estimator(iteration):
    """A real SIGINT: KeyboardInterrupt comes out of fit, the attributes are set and belong together."""
    X, y = problems.cancer()
    recorder = Recorder({iteration: lambda: signal.raise_signal(signal.SIGINT)})
    model = ChicleSVM(C=1000.0, tol=1e-12, store_duals=True, random_state=0).set_callbacks(recorder)
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, y)
    assert model.n_iter_ == len(model.history_) == iteration + 1
    assert model.duality_gap_ == pytest.approx(problems.recomputed_gaps(model, X, y)[0], rel=1e-9)
    assert model.score(X, y) > 0.9
    assert recorder.hooks[-1] == "teardown"
    assert model.set_params(tol=1e-3).set_callbacks().fit(X, y).duality_gap_ <= 1e-3


def test_an_error_in_a_callback_comes_out_of_fit():
    """Unchanged, and teardown is called."""
    X, y = problems.cancer()

    def fail():
        raise RuntimeError("the disk is full")

    recorder = Recorder({0: fail})
    with pytest.raises(RuntimeError, match="the disk is full"):
        ChicleSVM(C=1.0).set_callbacks(recorder).fit(X, y)
    assert recorder.hooks[-1] == "teardown"


@pytest.fixture(scope="module")
def monitor():
    """Made outside of the test: its socket stays open until the process ends (scikit-learn caches its hooks)."""
    return callback.ScoringMonitor(scoring=["accuracy", "roc_auc"])


def test_a_scoring_monitor_logs_a_score_per_iteration(monitor):
    """With sample weights, for both scorers that are asked for."""
    X, y = problems.cancer()
    model = ChicleSVM(C=0.1).set_callbacks(monitor).fit(X, y, np.linspace(0.5, 1, len(y)))
    rows = [row for row in monitor.get_logs().data if row["task_name"] == "iteration"]
    assert len(rows) == model.n_iter_
    assert rows[-1]["accuracy"] > 0.97
    assert rows[-1]["roc_auc"] > 0.99


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


@pytest.mark.parametrize("nested", [False, True], ids=["alone", "in a grid search over pipelines"])
def test_a_progress_bar_is_drawn(nested, capfd):
    """One line with our name, filled to the end."""
    pytest.importorskip("rich", reason="sklearn.callback.ProgressBar draws with rich, which is not installed")
    X, y = problems.cancer()
    estimator = ChicleSVM(C=0.1)
    if nested:
        estimator = GridSearchCV(make_pipeline(StandardScaler(), estimator), {"chiclesvm__C": [0.01, 0.1]}, cv=2)
    estimator.set_callbacks(callback.ProgressBar(max_propagation_depth=None)).fit(X, y)
    drawn = capfd.readouterr().out
    assert "ChicleSVM - fit" in drawn
    assert "100%" in drawn
