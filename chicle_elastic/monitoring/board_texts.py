"""Texts for TensorBoard, so that none is lost.

TensorBoard shows one text per step, the one that was written last, and forgets texts when steps go back; and of a tag
it keeps the texts of 100 steps at most, drawn at random. So a text is written with all that its step had before it,
and never at an earlier step (`StepTexts`); and all texts of a job are pages of a journal, each under its own tag.
"""

from collections.abc import Sequence

PAGE_LINES = 50
WRITTEN_EVERY_S = 2.0  # a page is written again when it has grown, but not more often than this: it is written whole


class StepTexts:
    """The texts of the latest step, so that the next one of that step does not hide them."""

    def __init__(self) -> None:
        self._step = 0
        self._texts: tuple[str, ...] = ()

    def add(self, step: int, texts: Sequence[str]) -> tuple[int, tuple[str, ...]]:
        """Take texts. Returns the step to write at, which is never before the latest one, and all texts of that
        step."""
        if step > self._step:
            self._step, self._texts = step, ()
        self._texts = (*self._texts, *texts)
        return self._step, self._texts


class Journal:
    """What happened, in pages."""

    def __init__(self) -> None:
        self._page = 1
        self._lines: list[str] = []
        self._step = 0
        self._written_s = float("-inf")
        self._full: list[tuple[str, int, str]] = []
        self._num_written = 0  # of these
        self._has_news = False

    def add(self, step: int, texts: Sequence[str]) -> None:
        """Take texts of a step."""
        self._step = max(step, self._step)
        for text in texts:
            if len(self._lines) >= PAGE_LINES:
                self._full.append(self._text())
                self._page, self._lines = self._page + 1, []
            cell = text.replace("|", "\\|").replace("\n", "<br>")
            self._lines.append(f"| {step} | {cell} |")
            self._has_news = True

    def pages(self, unix_s: float, *, is_last: bool = False) -> list[tuple[str, int, str]]:
        """What has to be written now.

        Returns:
            Pages: tag, step and Markdown.
        """
        full, self._num_written = self._full[self._num_written :], len(self._full)
        if self._has_news and (is_last or unix_s - self._written_s >= WRITTEN_EVERY_S):
            self._has_news, self._written_s = False, unix_s
            full.append(self._text())
        return full

    def repeat(self) -> None:
        """Another writer goes on: it writes every page again, because the last one may not have come to it."""
        self._num_written, self._has_news, self._written_s = 0, bool(self._lines), float("-inf")

    def _text(self) -> tuple[str, int, str]:
        table = "\n".join(["| iteration | what happened |", "| --- | --- |", *self._lines])
        return f"journal/page_{self._page:03d}", self._step, table
