"""ElasticEstimator on a local cluster of real agents."""

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler

from chicle_elastic.cluster.local.local_cluster import LocalCluster
from chicle_elastic.errors import ContractError, UsageError
from estimators import ElasticEstimator
from tests.cluster.notebooks import notebook
from tests.estimators.own_trainers import KMeans, NearestMean
from tests.estimators.test_elastic import Loud

X, Y = load_digits(return_X_y=True)
CELLS = (
    "from tests.estimators.own_trainers import KMeans\nFACTOR = 2.0\n",
    """
class Doubled(KMeans):
    "A class of the notebook, which shows twice the inertia."
    def figures(self, model, report):
        return {"doubled": FACTOR * report.metrics["inertia"]}
""",
)


@pytest.fixture(scope="module")
def cluster():
    """One for all tests of this file."""
    with LocalCluster(2) as cluster:
        yield cluster


def test_nodes_come_to_the_model_of_this_process(cluster) -> None:
    """In a pipeline and a search too, whose fits run on the same nodes one after the other."""
    here = ElasticEstimator(KMeans(num_clusters=4), random_state=0).fit(X)
    there = ElasticEstimator(KMeans(num_clusters=4), random_state=0, runtime=cluster).fit(X)
    assert len(there.history_.members) == 2
    assert there.n_iter_ == here.n_iter_
    np.testing.assert_allclose(there.model_, here.model_, rtol=1e-9)
    pipeline = make_pipeline(MinMaxScaler(), ElasticEstimator(NearestMean(), runtime=cluster))
    search = GridSearchCV(pipeline, {"elasticestimator__trainer__shrink": [0.0, 0.9]}, cv=2).fit(X, Y)
    assert search.best_params_ == {"elasticestimator__trainer__shrink": 0.0}
    assert search.score(X, Y) > 0.85


def test_a_trainer_of_a_notebook_goes_along(cluster) -> None:
    """With what it uses of another cell; the estimator has the class of the notebook."""
    with notebook(*CELLS) as names:
        model = ElasticEstimator(names["Doubled"](num_clusters=3), random_state=0, runtime=cluster).fit(X)
        assert type(model.trainer_) is names["Doubled"]
    assert model.history_[-1].figures["doubled"] == pytest.approx(-2 * model.score(X), rel=1e-3)


def test_what_is_wrong_is_told_as_in_this_process(cluster) -> None:
    """A metric without a name comes from a task; what cannot travel is refused before."""
    with pytest.raises(ContractError, match=r"node n\d: .*metrics 'squares'.* name them in Loud.metric_names"):
        ElasticEstimator(Loud(), runtime=cluster).fit(X, Y)
    generator = (number for number in range(3))
    with pytest.raises(UsageError, match=r"a generator cannot be pickled: trainer\.told \("):
        ElasticEstimator(NearestMean(told=generator), runtime=cluster).fit(X, Y)
