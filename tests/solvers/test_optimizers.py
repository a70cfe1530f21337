"""Steps of the optimizers are those of torch.optim, and their state is averaged like weights."""

from typing import Any

import numpy as np
import pytest

from chicle_elastic.runtime.in_process import InProcess
from chicle_elastic.solvers.optimizers import Optimizer
from estimators import ChicleCNNClassifier
from tests.estimators.cnn_data import bars, digits, paper, tiny

torch = pytest.importorskip("torch", reason="needs torch")


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
def test_steps_are_those_of_torch(name: Any, weight_decay: float) -> None:
    """Ten of them, with a rate that changes."""
    generator = torch.Generator().manual_seed(0)
    w = torch.randn(50, generator=generator)
    gradients = torch.randn(10, 50, generator=generator)
    optimizer = Optimizer(name=name, weight_decay=weight_decay)
    theirs = torch.nn.Parameter(w.clone())
    kinds = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    settings = {"momentum": 0.9} if name == "sgd" else {"betas": (0.9, 0.999)}
    reference = kinds[name]([theirs], lr=0.01, weight_decay=weight_decay, **settings)
    state = torch.zeros(optimizer.num_state(len(w)))
    for number, gradient in enumerate(gradients):
        lr = 0.01 / (1 + number)
        reference.param_groups[0]["lr"] = lr
        theirs.grad = gradient.clone()
        reference.step()
        g = gradient.clone()
        optimizer.step(w, g, state, lr, 0.9)
        assert not g.any()
    torch.testing.assert_close(w, theirs.detach(), rtol=1e-5, atol=1e-6)


def test_adam_learns_on_tasks_that_come_and_go() -> None:
    """As well as on one."""
    X, y = digits(600)
    given: dict[str, Any] = {
        "optimizer": "adam",
        "schedule": "cosine",
        "decay": 1.0,
        "max_epochs": 8,
        "random_state": 0,
    }
    alone = ChicleCNNClassifier(**given).fit(X[:450], y[:450])
    runtime = InProcess(num_tasks=4, changes=((4, 2), (8, 4)))
    several = ChicleCNNClassifier(**given, local_steps=4, runtime=runtime).fit(X[:450], y[:450])
    assert {record.num_tasks for record in several.history_} == {2, 4}
    assert several.score(X[450:], y[450:]) >= alone.score(X[450:], y[450:]) - 0.08


def test_a_class_of_torch_is_as_good_as_its_name(tmp_path: Any) -> None:
    """And is saved as such; the state goes along, so that `partial_fit` goes on."""
    X, y = bars()
    named, given = tiny(optimizer="adamw").fit(X, y), tiny(optimizer=torch.optim.AdamW).fit(X, y)
    np.testing.assert_array_equal(named.predict_proba(X), given.predict_proba(X))
    given.save(tmp_path / "net.npz")
    loaded = ChicleCNNClassifier.load(tmp_path / "net.npz")
    assert loaded.optimizer == "adamw"
    np.testing.assert_array_equal(loaded.partial_fit(X, y).predict_proba(X), given.partial_fit(X, y).predict_proba(X))
    given.set_params(optimizer="sgd").partial_fit(X, y)  # the state of another one is none


def test_an_optimizer_whose_state_is_not_known_is_refused() -> None:
    """By its name, and what there is instead; so are fused kernels for another one than SGD."""
    from chicle_elastic.errors import UsageError

    with pytest.raises(UsageError, match=r"optimizer=LBFGS: .*'sgd', 'adam' and 'adamw' only"):
        tiny(optimizer=torch.optim.LBFGS).fit(*bars())
    with pytest.raises(UsageError, match="by another optimizer"):
        paper(optimizer="adam", kernels="fused").fit(*digits(50))


def test_the_rate_falls_along_a_cosine() -> None:
    """Over the part that `decay` says."""
    figures = [
        record.figures["learning_rate"]
        for record in tiny(optimizer="adam", learning_rate=0.01, decay=1.0, schedule="cosine", max_epochs=3)
        .fit(*bars())
        .history_
    ]
    assert figures[0] == pytest.approx(0.01)
    assert figures == sorted(figures, reverse=True)
    assert figures[-1] < 0.003
