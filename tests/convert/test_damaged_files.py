"""Damaged files: read, or refused in one line that names the file; nothing else is raised, and nothing is left."""

import bz2
import gzip
import io
import lzma
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from chicle_elastic.chunks.convert import ConvertOptions, convert
from chicle_elastic.chunks.readers.base import ReadOptions
from chicle_elastic.errors import ChicleError
from tests.convert.test_columns import ORDERS, csv_text, write_parquet, zipped


def npz() -> bytes:
    """An archive of arrays."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, X=np.arange(24.0).reshape(12, 2), y=np.arange(12) % 2)
    return buffer.getvalue()


CSV = csv_text(ORDERS[0]).encode()
SVMLIGHT = b"".join(b"%d 1:%d 3:2.5\n" % (number % 2, number) for number in range(12))
FILES = {
    "csv": CSV,
    "csv.gz": gzip.compress(CSV),
    "csv.bz2": bz2.compress(CSV),
    "csv.xz": lzma.compress(CSV),
    "csv.zip": zipped(CSV),
    "svm": SVMLIGHT,
    "svm.gz": gzip.compress(SVMLIGHT),
    "npz": npz(),
}
PIECES = [b",", b"\n", b"\0", b'"', b"\r", b"nan", b"1e999", b"\xff", b"NA", b"_", b"\xef\xbb\xbf", b"9" * 30]
DAMAGES: list[Callable[[bytearray, int, np.random.Generator], object]] = [
    lambda data, place, rng: data.__setitem__(place, data[place] ^ (1 << int(rng.integers(8)))),
    lambda data, place, rng: data.__delitem__(slice(place, place + int(rng.integers(1, 40)))),
    lambda data, place, rng: data.__delitem__(slice(place, None)),
    lambda data, place, rng: data.__setitem__(slice(place, place), PIECES[int(rng.integers(len(PIECES)))]),
    lambda data, place, rng: data.__setitem__(slice(place, place), data[place // 2 : place]),
]


@pytest.mark.parametrize("ending", [*FILES, "parquet"])
def test_a_damaged_file_is_read_or_refused_by_its_name(tmp_path: Path, ending: str) -> None:
    """80 times one to three damages, seeded, in small blocks and large ones."""
    path = tmp_path / f"a.{ending}"
    sound = FILES[ending] if ending in FILES else write_parquet(path, ORDERS[0]).read_bytes()
    rng = np.random.default_rng(0)
    num_refused = 0
    for _ in range(80):
        data = bytearray(sound)
        for _ in range(rng.integers(1, 4)):
            if data:
                DAMAGES[rng.integers(len(DAMAGES))](data, int(rng.integers(len(data))), rng)
        path.write_bytes(data)
        options = ConvertOptions(max_tasks=1, read=ReadOptions(block_bytes=int(rng.choice([16, 1 << 18]))))
        try:
            convert([path], tmp_path / "out", options)
        except ChicleError as error:
            num_refused += 1
            message = str(error)
        else:
            message = str(path)
            for file in (tmp_path / "out").iterdir():
                file.unlink()
            (tmp_path / "out").rmdir()
        assert message.count("\n") == 0
        assert str(path) in message
        assert [left.name for left in tmp_path.iterdir()] == [path.name]
    assert num_refused > 30
