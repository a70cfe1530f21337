"""A base for classes with a method `close`, which makes them context managers."""

from typing import Self


class Closing:
    """Closes itself at the end of a `with` block."""

    def close(self) -> object:
        """Give up what this object holds; subclasses say what that is, and what they return."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
