"""Parameters of the estimators: fields of dataclasses, each described by the class that has it.

`parameters` makes the constructor of a class from its fields, and adds to its docstring what its bases say of the
parameters and attributes that it does not describe itself. So a parameter that several estimators have stands once.

The annotation of a field states what scikit-learn checks: a literal is one of its options, a bool and a str are
themselves, and `Annotated[kind, constraint, ...]` has constraints of `sklearn.utils._param_validation`.
"""

import functools
import inspect
import operator
import re
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Integral, Real
from os import PathLike
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, TypeVar, dataclass_transform

from sklearn.utils._param_validation import HasMethods, Interval, Options, StrOptions

from estimators.checks import LeanEstimator

if TYPE_CHECKING:
    from chicle_elastic.policies.base import Policy
    from chicle_elastic.runtime.training.job import Runtime

Kind = TypeVar("Kind", bound=type[Any])
SECTIONS, LATER = ("Parameters", "Attributes"), "See Also|Notes|References|Examples"
Above0: TypeAlias = Annotated[float, Interval(Real, 0.0, None, closed="neither")]
AtLeast0: TypeAlias = Annotated[float, Interval(Real, 0.0, None, closed="left")]
Share: TypeAlias = Annotated[float, Interval(Real, 0.0, 1.0, closed="both")]
ShareBelow1: TypeAlias = Annotated[float, Interval(Real, 0.0, 1.0, closed="left")]
Count: TypeAlias = Annotated[int, Interval(Integral, 1, None, closed="left")]
ClassWeight: TypeAlias = Annotated[
    Mapping[Any, float] | Literal["balanced"] | None, None, dict, StrOptions({"balanced"})
]
STATED: dict[Any, list[Any]] = {bool: ["boolean"], str: [str], NoneType: [None]}
"""Constraints that these annotations state."""


@dataclass_transform(kw_only_default=True, eq_default=False, field_specifiers=(field,))
def parameters(kind: Kind) -> Kind:
    """Give a class a constructor with its fields as keyword arguments and their constraints, and complete its
    docstring."""
    known: dict[str, list[Any]] = dict(getattr(kind, "_parameter_constraints", {}))
    for name, annotation in inspect.get_annotations(kind).items():
        kind.__annotations__[name], constraints = _split_annotation(annotation)  # `help` shows the plain one
        if constraints:
            known[name] = constraints
    dataclass(kw_only=True, eq=False, repr=False)(kind)
    names = inspect.signature(kind).parameters
    kind._parameter_constraints = {name: constraints for name, constraints in known.items() if name in names}
    if kind.__doc__ is not None:  # as `python -OO` leaves it
        kind.__doc__ = _completed(kind)
    return kind


def _split_annotation(annotation: Any) -> tuple[Any, list[Any]]:
    """Return an annotation without constraints, and the constraints; none where a part of it states none."""
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        return (args[0].__forward_arg__ if isinstance(args[0], typing.ForwardRef) else args[0]), list(args[1:])
    if origin is Literal:
        return annotation, [StrOptions(set(args))]
    if origin not in (typing.Union, UnionType):
        return annotation, STATED.get(annotation, [])
    plain, stated = zip(*map(_split_annotation, args), strict=True)
    return functools.reduce(operator.or_, plain), [each for one in stated for each in one] if all(stated) else []


def _completed(kind: type[Any]) -> str:
    """Return the docstring of a class with what it lacks, as its bases describe it."""
    doc, known = inspect.cleandoc(kind.__doc__ or ""), {*inspect.signature(kind).parameters}
    for section in SECTIONS:
        before, entries, after = _split(doc, section)
        for base in kind.__mro__[1:]:
            for name, text in _split(inspect.cleandoc(vars(base).get("__doc__") or ""), section)[1].items():
                if name in known or section == "Attributes":
                    entries.setdefault(name, text)
        doc = f"{before}{section}\n{'-' * len(section)}\n{''.join(entries.values())}{after}"
    return doc


def _split(doc: str, section: str) -> tuple[str, dict[str, str], str]:
    """Return the text before a section, its entries by their names, and the text after it."""
    before, found, rest = doc.partition(f"{section}\n{'-' * len(section)}\n")
    if not found:
        before, *others = re.split(rf"^(?={LATER})", doc, maxsplit=1, flags=re.MULTILINE)
        return before.rstrip("\n") + "\n\n", {}, "".join(f"\n{other}" for other in others)
    lines = re.match(r"(?:.+\n?)*", rest)
    body = lines[0] if lines else ""
    entries = [f"{entry.rstrip()}\n" for entry in re.split(r"(?<=\n)(?=\S)", body)]
    return before, {entry.partition(" : ")[0]: entry for entry in entries}, rest.removeprefix(body)


@parameters
class JobParams(LeanEstimator):
    """How and where a fit runs.

    Parameters
    ----------
    random_state : int, RandomState instance or None, default=None
        Seed of the shuffle of rows for several tasks.
    verbose : int, default=0
        1 shows a bar on a terminal, and elsewhere prints the method and a line per certificate; 2 prints the method and
        a line per iteration.
    chunk_size : int, default=None
        Bytes of a chunk; None chooses. It matters for several tasks only.
    runtime : Runtime, default=None
        Where the job runs; None means `chicle_elastic.InProcess(num_tasks=1)`. With a `chicle_elastic.LocalCluster`
        nodes are processes that come and go while it runs.
    n_workers : int or tuple of (int, int), default=None
        Short for ``runtime=LocalCluster(n_workers)``, with one cluster for all fits of this process; needs
        ``pip install 'chicle-elastic[cluster]'``. With (2, 4) the fit goes on while there are at least 2
        nodes; -1 means as many nodes as there are cores.
    policy : Policy or tuple of them, default=None
        Moves chunks while the fit runs, e.g. `chicle_elastic.Rebalance()` or `chicle_elastic.Shuffle()`; a grid search
        can vary its fields (``policy__window``). None leaves it to the runtime: a local cluster has the policies it
        was made with, by default none.
    logdir : str or path-like, default=None
        Folder for TensorBoard, in which each fit has a folder of its own; needs ``pip install
        'chicle-elastic[tensorboard]'``.

    Attributes
    ----------
    history_ : chicle_elastic.monitoring.history.History
        A record per iteration; ``pandas.DataFrame(history_.to_dict())``. On a local cluster `history_.members` are
        the nodes with their process ids, and `history_.transitions` says how long each change of the membership took.
        ``history_.plot()`` draws it. `history_.method` says how the model was found, and why so.
    ledger_ : chicle_elastic.monitoring.job_ledger.JobLedger
        What became of each chunk: rows, owner, iterations by node, replays.
    n_features_in_ : int
        Number of features.
    feature_names_in_ : ndarray of shape (n_features,)
        Names of the features, if X had some.
    """

    random_state: Annotated[Any, "random_state"] = None
    verbose: Annotated[int, "verbose"] = 0
    chunk_size: Count | None = None
    runtime: Annotated["Runtime | None", HasMethods(["run", "most_tasks"]), None] = None
    n_workers: Count | Annotated[int, Options(Integral, {-1})] | Annotated[tuple[int, int], tuple] | None = None
    policy: Annotated["Policy | tuple[Policy, ...] | None", HasMethods(["decide"]), tuple, None] = None
    logdir: str | Annotated[PathLike[str], PathLike] | None = None


@parameters
class LinearParams(JobParams):
    """What all fits of linear models have besides.

    Parameters
    ----------
    tol : float, default=1e-3
        Relative duality gap (P - D) / P at which the fit stops: the objective P is then certified to be at most
        ``tol * P`` above the best possible one. With 0 a fit ends at `max_iter`.
    max_iter : int, default=1000
        Most iterations, each of one pass over the data, or of several with little data and one task.
    fit_intercept : bool, default=True
        Whether there is an intercept; it is not penalised.
    """

    tol: AtLeast0 = 1e-3
    max_iter: Count = 1000
    fit_intercept: bool = True
