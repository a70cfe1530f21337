"""Typed access to JSON that may hold anything; every error names the file and the path of the field."""

from collections.abc import Mapping, Sequence
from typing import Any

from chicle_elastic.errors import DataError

ADVICE = "restore the file, or convert the data again"
MAX_SHOWN_CHARS = 60


class Fields:
    """The fields of one object. Raises DataError when `content` is no object."""

    def __init__(self, content: Any, where: str, path: str = "", *, advice: str = ADVICE) -> None:
        if not isinstance(content, Mapping):
            what = path.rstrip(".") or "the whole"
            raise DataError(f"{where}: {what} is {shown(content)}, and has to be an object of JSON; {advice}")
        self.content = content
        self.where = where
        self.path = path
        self.advice = advice

    def refused(self, key: str, problem: str) -> DataError:
        """The error about one field, to be raised."""
        return DataError(f"{self.where}: {self.path}{key} {problem}; {self.advice}")

    def get(self, key: str, kind: type, kind_name: str) -> Any:
        """The value of a field, exactly of type `kind` (a bool is no int here)."""
        if key not in self.content:
            raise self.refused(key, "is missing")
        value = self.content[key]
        if type(value) is not kind:
            raise self.refused(key, f"is {shown(value)}, and has to be {kind_name}")
        return value

    def text(self, key: str) -> str:
        """A string."""
        value: str = self.get(key, str, "a string")
        return value

    def number(self, key: str, *, at_least: int) -> int:
        """An integer that a signed 64-bit number holds."""
        value: int = self.get(key, int, "an integer")
        if not at_least <= value < 2**63:
            raise self.refused(key, f"is {shown(value)}, and has to be at least {at_least} and below 2**63")
        return value

    def flag(self, key: str) -> bool:
        """True or false."""
        value: bool = self.get(key, bool, "true or false")
        return value

    def one_of(self, key: str, allowed: Sequence[str]) -> str:
        """One of some strings."""
        value = self.text(key)
        if value not in allowed:
            raise self.refused(key, f"is {shown(value)}, and has to be one of {', '.join(map(repr, allowed))}")
        return value

    def items(self, key: str) -> list[Any]:
        """A list."""
        value: list[Any] = self.get(key, list, "a list")
        return value

    def checksum(self, key: str) -> int:
        """A CRC-32, written as 8 lower-case hex digits."""
        value = self.text(key)
        if len(value) != 8 or set(value) - set("0123456789abcdef"):
            raise self.refused(key, f"is {shown(value)}, and has to be 8 hex digits")
        return int(value, 16)


def shown(value: Any) -> str:
    """A value for a message, cut short."""
    if isinstance(value, int) and abs(value) >= 10**MAX_SHOWN_CHARS:
        return "a very large number"  # Python refuses to print the largest
    text = repr(value)
    return text if len(text) <= MAX_SHOWN_CHARS else text[:MAX_SHOWN_CHARS] + "..."
