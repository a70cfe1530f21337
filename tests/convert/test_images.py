"""IDX and CIFAR-10: images keep bytes and shape, labels are found, and damaged files are refused by name."""

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from chicle_elastic.chunks.convert import ConvertOptions, convert
from chicle_elastic.chunks.readers.base import ReadOptions
from chicle_elastic.chunks.readers.formats import detect_format
from chicle_elastic.chunks.readers.images import read_cifar, read_idx
from chicle_elastic.chunks.views import Array
from chicle_elastic.errors import DataError, UsageError
from tests.convert.inputs import joined, read_back
from tests.real_data import real_data

IMAGES = np.arange(7 * 4 * 5, dtype=np.uint8).reshape(7, 4, 5)
LABELS = np.array([3, 1, 4, 1, 5, 9, 2], dtype=np.uint8)
CODES = {"u1": 0x08, "i1": 0x09, "i2": 0x0B, "i4": 0x0C, "f4": 0x0D, "f8": 0x0E}


def idx(array: Array) -> bytes:
    """The array as an IDX file."""
    code = CODES[array.dtype.str[1:]]
    big = array.astype(array.dtype.newbyteorder(">"))
    return bytes([0, 0, code, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + big.tobytes()


def write(folder: Path, images: Array = IMAGES, labels: Array = LABELS, *, pack=bytes, end: str = "") -> Path:
    """Both files under MNIST's names; returns that of the images."""
    (folder / f"train-labels-idx1-ubyte{end}").write_bytes(pack(idx(labels)))
    path = folder / f"train-images-idx3-ubyte{end}"
    path.write_bytes(pack(idx(images)))
    return path


def cifar(folder: Path, labels: Array, *, cut: int = 0, name: str = "data_batch_1.bin") -> tuple[Path, Array]:
    """A file of CIFAR-10 and its images."""
    images = np.random.default_rng(0).integers(0, 256, (len(labels), 3072), dtype=np.uint8)
    content = np.column_stack([labels.astype(np.uint8), images]).tobytes()
    path = folder / name
    path.write_bytes(content[: len(content) - cut])
    return path, images


@pytest.mark.parametrize("dtype", sorted(CODES))
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_idx_keeps_values_and_shape(tmp_path, pack, dtype):
    """Plain and compressed, in blocks, of every type of IDX; labels come from the file beside it."""
    path = write(tmp_path, IMAGES.astype(dtype), pack=pack)
    assert detect_format(path) == "idx"
    blocks = list(read_idx(path, ReadOptions(block_bytes=50)))
    rows, targets = joined(blocks)
    assert len(blocks) > 1
    assert rows.dtype == np.dtype(dtype)
    assert {block.sample_shape for block in blocks} == {(4, 5)}
    np.testing.assert_array_equal(rows, IMAGES.reshape(7, 20).astype(dtype))
    np.testing.assert_array_equal(targets, LABELS)


def test_labels_may_have_another_name_or_another_packing(tmp_path):
    """A compressed file of labels beside a plain one of images; or one that is named."""
    path = write(tmp_path)
    labels = tmp_path / "train-labels-idx1-ubyte"
    other = tmp_path / "other"
    other.write_bytes(idx(LABELS[::-1]))
    (found,) = read_idx(path, ReadOptions(targets=other))
    np.testing.assert_array_equal(found.targets, LABELS[::-1])
    labels.rename(other)
    with pytest.raises(UsageError, match="no train-labels-idx1-ubyte beside it; pass --targets"):
        list(read_idx(path, ReadOptions()))
    (tmp_path / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(LABELS)))
    assert len(list(read_idx(path, ReadOptions()))) == 1


def test_idx_becomes_a_folder_of_bytes(tmp_path):
    """uint8 chunks with the shape of a sample, shuffled, labels as classes."""
    folder = convert([write(tmp_path)], tmp_path / "out")
    assert (folder.schema.dtype, folder.schema.sample_shape, folder.classes) == ("uint8", (4, 5), (1, 2, 3, 4, 5, 9))
    back = read_back(folder)
    np.testing.assert_array_equal(back.X, IMAGES.reshape(7, 20))
    np.testing.assert_array_equal(np.array(folder.classes)[back.y], LABELS)


def test_the_files_of_cifar_become_one_folder(tmp_path):
    """Told by name and size; images are 3 x 32 x 32."""
    labels = np.arange(20) % 10
    parts = [
        cifar(tmp_path, labels[half], name=f"data_batch_{i}.bin") for i, half in enumerate((slice(9), slice(9, 20)))
    ]
    assert detect_format(parts[0][0]) == "cifar10"
    assert len(list(read_cifar(parts[0][0], ReadOptions(block_bytes=4 * 3073)))) == 3
    folder = convert([path for path, _ in parts], tmp_path / "out", ConvertOptions(max_tasks=2))
    assert folder.schema.sample_shape == (3, 32, 32)
    assert folder.classes == tuple(range(10))
    back = read_back(folder)
    np.testing.assert_array_equal(back.X, np.concatenate([images for _, images in parts]))
    np.testing.assert_array_equal(back.y, labels)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (lambda: idx(IMAGES)[:-3], "cut short, .* 3 of the next .* are missing"),
        (lambda: idx(IMAGES) + b"\7", "more bytes follow"),
        (lambda: gzip.compress(idx(IMAGES))[:-20], "not readable .*ended before"),
        (lambda: idx(LABELS), "this is a file of labels"),
        (lambda: b"\0\0\x07\x03" + bytes(100), "no IDX file"),
        (lambda: b"\0\0\x08\x03" + b"\xff" * 12, "one row of shape .* check the file"),
        (lambda: b"\0\0\x08\x03" + bytes(12), "there are no samples"),
    ],
)
def test_a_damaged_idx_is_refused(tmp_path, content, complaint):
    """With its name and what is wrong."""
    path = write(tmp_path)
    path.write_bytes(content())
    with pytest.raises(DataError, match=f"images.*{complaint}"):
        list(read_idx(path, ReadOptions()))


def test_labels_of_other_images_are_refused(tmp_path):
    """With both numbers."""
    path = write(tmp_path, labels=LABELS[:5])
    with pytest.raises(DataError, match=r"labels of shape \(5,\), but .* has 7 images"):
        list(read_idx(path, ReadOptions()))


def test_a_damaged_cifar_is_refused(tmp_path):
    """Cut short, and with a label that CIFAR-10 has not."""
    path, _ = cifar(tmp_path, np.arange(3), cut=5)
    with pytest.raises(DataError, match="left behind row 1"):
        list(read_cifar(path, ReadOptions()))
    path, _ = cifar(tmp_path, np.array([1, 2, 77]))
    with pytest.raises(DataError, match="row 2: the label is 77"):
        list(read_cifar(path, ReadOptions()))


def test_fashion_mnist_converts_as_it_comes(tmp_path):
    """10,000 images of 28 x 28, ten classes of a thousand each, in 47 chunks of at most 200 KiB."""
    folder = convert([real_data("fashion-mnist/t10k-images-idx3-ubyte.gz")], tmp_path / "out")
    assert folder.schema.sample_shape == (28, 28)
    assert (folder.num_rows, folder.classes) == (10_000, tuple(range(10)))
    back = read_back(folder)
    assert np.bincount(back.y).tolist() == [1000] * 10
    assert max(file.size_bytes for file in folder.manifest.chunks) <= (200 << 10) + 4096
