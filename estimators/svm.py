"""The linear support vector machine."""

from typing import Literal

from chicle_elastic.errors import UsageError
from estimators.base import LinearClassifier
from estimators.params import Share, parameters


@parameters
class ChicleSVM(LinearClassifier):
    """Linear support vector machine with a certified duality gap, on one machine or many.

    It is used like :class:`sklearn.svm.LinearSVC`, and minimises the same function: the intercept is one more feature
    of constant value `intercept_scaling`, penalised like the rest. With ``penalty="l1"`` many weights are exactly 0.
    Every difference:

    ======================  ==================================================  ===========================
    what                    ChicleSVM                                           LinearSVC
    ======================  ==================================================  ===========================
    ``loss``                "hinge" by default                                  "squared_hinge" by default
    ``tol``                 relative duality gap (P - D) / P of the worst       liblinear's own measure,
                            output, certified before the fit stops; 1e-3        1e-4
    ``max_iter``            iterations, each of at least one pass over the      liblinear's own iterations
                            data
    ``class_weight``        multiplies C of the samples of a class, also where  with more than two classes
                            they are the "rest" of another class                only where they are not
    ``dual``                coordinate descent or Newton's method, as the data  parameter
                            asks for; no parameter
    ``multi_class``         one-vs-rest; no parameter                           or Crammer and Singer's
    parameters              keyword only                                        the first two positional
    ``random_state``        decides the order of samples; equal seeds and       same
                            ``n_threads=1`` give bit-identical models
    weights of 0            a class whose samples all weigh 0 keeps its         liblinear drops the class
                            column
    dtype                   floats and bytes stay as they are,                  input becomes float64
                            CSR indices may be int64; ``coef_`` is float64      and int32
    ``intercept_``          zeros of shape (n_outputs,) without an intercept    0.0
    only in one             ``warm_start``, ``n_threads``, ``chunk_size``,      ``sparsify``, ``densify``
                            ``runtime``, ``n_workers``, ``policy``,
                            ``logdir``, ``store_duals``, callbacks, ``save``,
                            ``load``, ``fit(ChunkFolder(path))``,
                            ``to_sklearn``, ``sparse_coef_``
    ======================  ==================================================  ===========================

    Parameters
    ----------
    loss : {"hinge", "squared_hinge", "modified_huber"}, default="hinge"
        Loss of a margin m: max(0, 1 - m), its square, or the square with a straight line, -4 m, where m < -1, which
        outliers change less; SGDClassifier has the last one, too. "hinge" has no l1 penalty.
    penalty : {"l2", "l1", "elasticnet"}, default="l2"
        What is added to the losses: 1/2 |w|^2, the sum of the absolute values of w, or both; that of the intercept
        included.
    l1_ratio : float, default=0.15
        Share of the second, from 0 to 1, with ``penalty="elasticnet"`` only.
    algorithm : {"auto", "newton", "cocoa"}, default="auto"
        "cocoa" is the algorithm of the Chicle paper: coordinate descent on every node, whose changes are added up,
        whatever that takes. "newton" is Newton's method on chunks. "auto" chooses, and ``history_.methods`` says what
        and why. An l1 penalty has a method of its own.
    warm_start : bool, default=False
        Begin with the duals of the last `fit`, if features and labels are the same, byte by byte, or begin with those
        (rows were added at the end); other data silently starts afresh. `C`, `loss` and all weights may change in
        between. The duals stay out of pickles and copies. With
        ``penalty="l1"`` a fit begins with `coef_` and `intercept_` of the last one, if features and classes are as many
        and the same; that helps along a path of `C`.

    Attributes
    ----------
    objective_ : ndarray of shape (1,) or (n_classes,), float64
        Primal objective P of each output: ``0.5 * |w|^2 + C * sum(weight * loss)``, w with the intercept's weight; with
        ``penalty="l1"`` it has ``sum(|w|)`` in place of ``0.5 * |w|^2``.
    dual_objective_ : ndarray of shape (1,) or (n_classes,), float64
        Dual objective D <= P of each output.
    duals_ : ndarray of shape (n_samples, 1) or (n_samples, n_classes), float64
        Dual variables alpha >= 0 with ``coef_[k] = sum(duals_[i, k] * y_ik * x_i)``, y_ik = 1 or -1, if the fit
        converged (up to `tol` where Newton's method on wide data has found it); else they are those of
        `dual_objective_`. Only with `store_duals`. The rows are those of X.

    See Also
    --------
    ChicleLogisticRegression : The same with logistic loss and probabilities.
    sklearn.svm.LinearSVC : On small data and one machine it is as good or faster.

    Notes
    -----
    The number of rows, columns, classes and tasks decides between coordinate descent (CoCoA), Newton's method on sums
    over all tasks, and a working set; times never do. The page on linear models has the table.

    More weights than a working set has room for, 2047 for two classes, are no trouble on one task with sparse rows. On
    several tasks they take turns, and the fit may end with a warning.

    References
    ----------
    Kaufmann et al., "Addressing Algorithmic Bottlenecks in Elastic Machine Learning with Chicle".
    Ma et al. 2015, "Adding vs. averaging in distributed primal-dual optimization".
    Yin and Li 2019, "A semismooth Newton method for support vector classification and regression".
    Yuan, Ho and Lin 2012, "An improved GLMNET for l1-regularized logistic regression".

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> from estimators import ChicleSVM
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> model = make_pipeline(StandardScaler(), ChicleSVM(C=0.01, random_state=0)).fit(X, y)
    >>> bool(model[-1].duality_gap_ <= 1e-3)
    True
    >>> svm = ChicleSVM(penalty="l1", loss="squared_hinge", C=0.01)
    >>> make_pipeline(StandardScaler(), svm).fit(X, y)[-1].sparse_coef_.nnz
    7
    """

    _twin = "sklearn.svm.LinearSVC"

    loss: Literal["hinge", "squared_hinge", "modified_huber"] = "hinge"
    penalty: Literal["l2", "l1", "elasticnet"] = "l2"
    l1_ratio: Share = 0.15

    def _loss_name(self) -> str:
        return self.loss

    def _l1_share(self) -> float:
        share = {"l2": 0.0, "l1": 1.0, "elasticnet": float(self.l1_ratio)}[self.penalty]
        if share and self.loss == "hinge":
            raise UsageError(
                f"penalty={self.penalty!r} needs loss='squared_hinge' or 'modified_huber', got loss='hinge', which is "
                f"the default; set one of them or penalty='l2', or use ChicleLogisticRegression(l1_ratio={share:g})"
            )
        return share

    def _remedies(self) -> tuple[str, ...]:
        faster = ('use loss="squared_hinge", which converges faster',) if self.loss == "hinge" else ()
        return (*super()._remedies(), *faster)
