"""Policies as text."""

import pytest

from chicle_elastic.errors import UsageError
from chicle_elastic.policies.rebalance import Rebalance
from chicle_elastic.policies.scale import Scale
from chicle_elastic.policies.shuffle import Shuffle
from chicle_elastic.runtime.simulate.policy_sets import policies_of


def test_a_set_is_policies_with_their_fields() -> None:
    """In their order, with numbers and None; `none` is the empty set."""
    assert policies_of("Rebalance + Shuffle:share=.1") == (Rebalance(), Shuffle(share=0.1))
    assert policies_of("Scale:least=2,alone=None") == (Scale(least=2, alone=None),)
    assert policies_of("none") == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Balance", "there is no policy 'Balance'; there are Rebalance, Scale, Shuffle"),
        ("Rebalance+", "there is no policy ''"),
        ("Shuffle:part=0.1", "policy Shuffle: 'part=0.1' is not FIELD=VALUE; its fields are share"),
        ("Shuffle:share", "'share' is not FIELD=VALUE"),
        ("Shuffle:share=2", "share=2"),
        ("Shuffle:share=lots", "share='lots'"),
        ("Rebalance+Rebalance", "a policy is there twice"),
    ],
)
def test_text_that_is_no_set_is_refused(text: str, message: str) -> None:
    """With what there is."""
    with pytest.raises(UsageError) as raised:
        policies_of(text)
    assert message in str(raised.value)
