"""Damaged files: read, or refused in one line that names the file; nothing else is raised, and nothing is left."""

import bz2
import gzip
import io
import lzma
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

from chicle_elastic.chunks.convert import ConvertOptions, convert
from chicle_elastic.chunks.readers.base import ReadOptions
from chicle_elastic.chunks.views import Array
from chicle_elastic.errors import ChicleError
from tests.convert.inputs import read_back
from tests.convert.test_columns import ORDERS, csv_text, write_parquet, zipped

X, Y = np.arange(24.0).reshape(12, 2), np.arange(12) % 2
CSR = sparse.csr_matrix(X)


def saved(save: Callable[..., object], *arrays: Array, **named: object) -> bytes:
    """What NumPy makes of arrays."""
    buffer = io.BytesIO()
    save(buffer, *arrays, **named)
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
    "npy": saved(np.save, X),
    "f.npy": saved(np.save, np.asfortranarray(X)),
    "npz": saved(np.savez, X=X, y=Y),
    "packed.npz": saved(np.savez_compressed, X=X, y=Y),
    "csr.npz": saved(np.savez, data=CSR.data, indices=CSR.indices, indptr=CSR.indptr, shape=CSR.shape, y=Y),
}
PIECES = [b",", b"\n", b"\0", b'"', b"\r", b"nan", b"1e999", b"\xff", b"NA", b"_", b"\xef\xbb\xbf", b"9" * 30]
DAMAGES: list[Callable[[bytearray, int, np.random.Generator], object]] = [
    lambda data, place, rng: data.__setitem__(place, data[place] ^ (1 << int(rng.integers(8)))),
    lambda data, place, rng: data.__delitem__(slice(place, place + int(rng.integers(1, 40)))),
    lambda data, place, rng: data.__delitem__(slice(place, None)),
    lambda data, place, rng: data.__setitem__(slice(place, place), PIECES[int(rng.integers(len(PIECES)))]),
    lambda data, place, rng: data.__setitem__(slice(place, place), data[place // 2 : place]),
]


@pytest.mark.filterwarnings("ignore:Reading .*header parsing")
@pytest.mark.parametrize("ending", [*FILES, "parquet"])
def test_a_damaged_file_is_read_or_refused_by_its_name(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, ending: str
) -> None:
    """200 times one to three damages, seeded, in small blocks and large ones; archives have checksums of all values."""
    targets = tmp_path_factory.mktemp("beside") / "y.npy"
    np.save(targets, Y)
    path = tmp_path / f"a.{ending}"
    sound = FILES[ending] if ending in FILES else write_parquet(path, ORDERS[0]).read_bytes()
    rng = np.random.default_rng(0)
    num_refused = 0
    for _ in range(200):
        data = bytearray(sound)
        for _ in range(rng.integers(1, 4)):
            if data:
                DAMAGES[rng.integers(len(DAMAGES))](data, int(rng.integers(len(data))), rng)
        path.write_bytes(data)
        read = ReadOptions(block_bytes=int(rng.choice([16, 1 << 18])), targets=targets if "npy" in ending else None)
        options = ConvertOptions(max_tasks=1, dtype="float64", read=read)
        try:
            folder = convert([path], tmp_path / "out", options)
        except ChicleError as error:
            num_refused += 1
            message = str(error)
        else:
            message = str(path)
            if ending.endswith("npz"):
                np.testing.assert_array_equal(read_back(folder).X, X)
            for file in (tmp_path / "out").iterdir():
                file.unlink()
            (tmp_path / "out").rmdir()
        assert message.count("\n") == 0
        assert str(path) in message
        assert [left.name for left in tmp_path.iterdir()] == [path.name]
    assert num_refused > 80
