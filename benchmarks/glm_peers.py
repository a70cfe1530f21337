"""The peers of the benchmark of linear models, and how each of them writes 0.5 |w|^2 + C sum(loss).

liblinear (scikit-learn), Snap ML: the same, `regularizer` = 1 / C; the squared hinge has no half anywhere but in
cyanure. cyanure: mean of the losses + lambda_1 / 2 |w|^2, squared hinge with a half, so lambda_1 = 1 / (n C), or
1 / (2 n C). All go without an intercept. Everywhere the stopping rule is switched off, and iterations are counted. More
than two classes are one-vs-rest: by the library itself, or by `OneVsRestClassifier` where it would take softmax.
"""

import importlib.util
import logging
from typing import Any

from benchmarks.peers import Peer
from benchmarks.problems import Problem

TINY = 1e-12
MOST_COLUMNS = 5000
"""Of a Hessian that is still worth a Cholesky factor; twice as many columns need 800 MB and a minute a step."""


def one_vs_rest(model: Any, problem: Problem) -> Any:
    """The model itself for two classes."""
    if problem.data.num_classes == 2:
        return model
    from sklearn.multiclass import OneVsRestClassifier

    return OneVsRestClassifier(model)


def liblinear_dual(problem: Problem, iterations: int) -> Any:
    """Coordinate descent in the dual, the solver that ours descends from."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.svm import LinearSVC

    common = {"C": problem.C, "dual": True, "tol": TINY, "max_iter": iterations, "fit_intercept": False}
    if problem.loss == "logistic":
        return one_vs_rest(LogisticRegression(solver="liblinear", random_state=0, **common), problem)
    return LinearSVC(loss=problem.loss, random_state=0, **common)


def liblinear_primal(problem: Problem, iterations: int) -> Any:
    """A trust-region Newton method."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.svm import LinearSVC

    common = {"C": problem.C, "dual": False, "tol": TINY, "max_iter": iterations, "fit_intercept": False}
    if problem.loss == "logistic":
        return one_vs_rest(LogisticRegression(solver="liblinear", random_state=0, **common), problem)
    return LinearSVC(loss=problem.loss, random_state=0, **common)


def scikit_learn(solver: str, problem: Problem, iterations: int) -> Any:
    """A solver of `LogisticRegression` of scikit-learn's own."""
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(solver=solver, C=problem.C, tol=TINY, max_iter=iterations, fit_intercept=False)
    return one_vs_rest(model, problem)


def intelex(problem: Problem, iterations: int) -> Any:
    """Intel's lbfgs on one thread; on CSR it hands over to scikit-learn's, so it takes part on dense data only."""
    from sklearnex.linear_model import LogisticRegression

    model = LogisticRegression(
        solver="lbfgs", C=problem.C, tol=TINY, max_iter=iterations, fit_intercept=False, n_jobs=1
    )
    return one_vs_rest(model, problem)


def cyanure(problem: Problem, iterations: int) -> Any:
    """Cyanure as it chooses; without its duality gaps, which cost time and stop it early on float32."""
    from cyanure.estimators import Classifier

    logging.getLogger("cyanure").setLevel(logging.ERROR)  # it talks about dtypes of labels in every fit
    halves = 1 if problem.loss == "logistic" else 2
    return Classifier(
        loss="logistic" if problem.loss == "logistic" else "sqhinge",
        penalty="l2",
        lambda_1=1 / (halves * problem.data.num_samples * problem.C),
        fit_intercept=False,
        tol=TINY,
        max_iter=iterations,
        duality_gap_interval=iterations + 1,
        multi_class="ovr",
        n_threads=1,
        random_state=0,
        verbose=False,
    )


def snapml(problem: Problem, iterations: int) -> Any:
    """IBM's Snap ML on one thread, in the dual."""
    from snapml import LogisticRegression, SupportVectorMachine

    common = {
        "regularizer": 1 / problem.C,
        "tol": TINY,
        "max_iter": iterations,
        "fit_intercept": False,
        "use_gpu": False,
        "n_jobs": 1,
        "random_state": 0,
    }
    if problem.loss == "logistic":
        return LogisticRegression(dual=True, **common)
    return SupportVectorMachine(loss=problem.loss, **common)


def is_smooth(problem: Problem) -> bool:
    """Whether the loss has a derivative."""
    return problem.loss != "hinge"


def is_logistic(problem: Problem) -> bool:
    """Whether the loss is logistic."""
    return problem.loss == "logistic"


def suits_cholesky(problem: Problem) -> bool:
    """Whether the loss is logistic and the Hessian small."""
    return is_logistic(problem) and problem.data.num_features <= MOST_COLUMNS


def suits_intelex(problem: Problem) -> bool:
    """Whether the loss is logistic and the data dense."""
    return is_logistic(problem) and not problem.data.is_sparse


def from_scikit_learn(solver: str) -> Any:
    """`Peer.make` of a solver."""
    return lambda problem, iterations: scikit_learn(solver, problem, iterations)


def known_peers() -> list[tuple[Peer, str]]:
    """Every peer and the module that it needs, most often fastest first."""
    return [
        (Peer("liblinear dual", "scikit-learn", liblinear_dual), "sklearn"),
        (Peer("liblinear primal", "scikit-learn", liblinear_primal, is_smooth), "sklearn"),
        (Peer("newton-cholesky", "scikit-learn", from_scikit_learn("newton-cholesky"), suits_cholesky), "sklearn"),
        (Peer("cyanure", "cyanure", cyanure, is_smooth), "cyanure"),
        (Peer("Snap ML", "snapml", snapml), "snapml"),
        (Peer("newton-cg", "scikit-learn", from_scikit_learn("newton-cg"), is_logistic), "sklearn"),
        (Peer("intelex lbfgs", "scikit-learn-intelex", intelex, suits_intelex), "sklearnex"),
        (Peer("lbfgs", "scikit-learn", from_scikit_learn("lbfgs"), is_logistic), "sklearn"),
    ]


def installed_peers() -> tuple[list[Peer], list[str]]:
    """The peers that can run here, and a line about each that cannot."""
    peers, notes = [], []
    for peer, module in known_peers():
        if importlib.util.find_spec(module):
            peers.append(peer)
        else:
            notes.append(f"{peer.name} is not here (pip install {peer.package}) and does not take part.")
    return peers, notes
