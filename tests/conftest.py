"""What every test gets: the watch over leaks."""

from tests.leaks import no_leaks

__all__ = ["no_leaks"]
