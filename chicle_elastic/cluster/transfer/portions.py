"""What is to be fetched from one node, cut into portions: each is fetched by one worker thread, over one connection.

Portions are equal in bytes and not in chunks. Rows are worth a thread of their own; states without rows are not, and
threads that do little but run Python wait for each other.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

PORTION_BYTES = 16 << 20

_Item = TypeVar("_Item")


def portions(items: Sequence[_Item], size_bytes: Callable[[_Item], int]) -> Iterator[list[_Item]]:
    """The items in their order, cut so that a portion ends with the item that makes it `PORTION_BYTES` or more."""
    portion: list[_Item] = []
    so_far = 0
    for item in items:
        portion.append(item)
        so_far += size_bytes(item)
        if so_far >= PORTION_BYTES:
            yield portion
            portion, so_far = [], 0
    if portion:
        yield portion
