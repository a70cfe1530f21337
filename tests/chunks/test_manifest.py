"""The manifest: nothing in it is believed, and every refusal names the file and the field."""

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chicle_elastic.chunks.folder import ChunkFolder
from chicle_elastic.errors import DataError
from tests.chunks.folders import edit_manifest, write_folder


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A good folder, not to be changed."""
    return write_folder(tmp_path_factory.mktemp("manifest") / "data").path


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    """A copy of it by links, whose manifest may be changed."""
    copy = tmp_path / "data"
    copy.mkdir()
    for path in original.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    return copy


def at(*path: str | int) -> Callable[[Any], Any]:
    """The container at the end of a path."""

    def find(content: Any) -> Any:
        for key in path:
            content = content[key]
        return content

    return find


LIES = {
    "sizes, too small": (at("chunks", 1), "size_bytes", 64, r"chunks\[1\] .'chunk-000001.bin'. is said to have"),
    "sizes, too large": (at("chunks", 1), "size_bytes", 10**15, r"chunks\[1\] .'chunk-000001.bin'."),
    "size is text": (at("chunks", 1), "size_bytes", "64", r"chunks\[1\].size_bytes is '64', and has to be an integer"),
    "size is true": (at("chunks", 1), "size_bytes", True, r"chunks\[1\].size_bytes is True"),
    "size is negative": (at("chunks", 1), "size_bytes", -1, r"chunks\[1\].size_bytes is -1, .* at least 1"),
    "rows, one more": (at("chunks", 1), "num_rows", 17, r"chunks\[1\]|rows together"),
    "rows, none": (at("chunks", 1), "num_rows", 0, r"chunks\[1\].num_rows is 0"),
    "rows, very many": (at("chunks", 1), "num_rows", 2**62, r"chunks\[1\]"),
    "rows, beyond int64": (at("chunks", 1), "num_rows", 10**30, r"chunks\[1\].num_rows"),
    "rows, more digits than Python prints": (at("chunks", 1), "num_rows", 10**4000, "a very large number"),
    "all rows": (at("schema"), "num_rows", 101, "the chunks have 100 rows together, but the schema says 101"),
    "a path": (
        at("chunks", 1),
        "file",
        "../x.bin",
        r"chunks\[1\].file is '../x.bin', and has to be the name of a file",
    ),
    "an absolute path": (at("chunks", 1), "file", "/etc/passwd", r"chunks\[1\].file"),
    "a path of Windows": (at("chunks", 1), "file", "..\\x.bin", r"chunks\[1\].file"),
    "a drive": (at("chunks", 1), "file", "C:x.bin", r"chunks\[1\].file"),
    "no name": (at("chunks", 1), "file", "", r"chunks\[1\].file"),
    "the parent": (at("chunks", 1), "file", "..", r"chunks\[1\].file"),
    "the manifest": (at("chunks", 1), "file", "manifest.json", r"chunks\[1\].file"),
    "a file twice": (at("chunks", 1), "file", "chunk-000000.bin", "which another chunk has already"),
    "another CRC": (at("chunks", 0), "crc32", "00000000", "chunk 0: the CRC is"),
    "a CRC that is none": (at("chunks", 1), "crc32", "xyz", r"chunks\[1\].crc32 is 'xyz', .* 8 hex digits"),
    "no chunks": (at(), "chunks", [], "chunks is empty"),
    "chunks of text": (at(), "chunks", ["chunk-000000.bin"], r"chunks\[0\] is 'chunk-000000.bin', .* object"),
    "chunks that are no list": (at(), "chunks", {}, "chunks is {}, and has to be a list"),
    "kind": (at("schema"), "kind", "coo", "schema.kind is 'coo', and has to be one of 'dense', 'csr'"),
    "dtype": (at("schema"), "dtype", "int16", "schema.dtype is 'int16'"),
    "target dtype": (at("schema"), "target_dtype", "int64", "schema.target_dtype is 'int64'"),
    "classes of real targets": (at("schema"), "target_dtype", "float64", "no class codes"),
    "features": (at("schema"), "num_features", 0, "schema.num_features is 0"),
    "weights": (at("schema"), "has_weights", 1, "schema.has_weights is 1, and has to be true or false"),
    "weights without dtype": (at("schema"), "has_weights", True, "weight_dtype is ''"),
    "index dtype of dense rows": (at(), "index_dtype", "int32", "index_dtype is 'int32'"),
    "sample shape": (at("schema"), "sample_shape", [2, 2], r"sample_shape is \[2, 2\], but there are 6 features"),
    "sample shape, negative": (at("schema"), "sample_shape", [-2, -3], "sample_shape"),
    "schema": (at(), "schema", None, "schema is None, and has to be an object"),
    "a class too few": (at(), "classes", ["blue", "red"], "classes has 2 different labels, but schema.num_classes=3"),
    "a class twice": (at(), "classes", ["blue", "red", "red"], "classes has 2 different labels"),
    "a class that is none": (at(), "classes", ["blue", "red", None], "classes has to hold numbers or strings"),
    "another format": (at(), "format", "zip", "no manifest of a chunk folder"),
    "a newer version": (at(), "version", 2, "version 2, and this Chicle reads versions 1 to 1; upgrade chicle-elastic"),
    "version 0": (at(), "version", 0, "version is 0"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_manifest_that_lies_is_refused(folder: Path, lie: str) -> None:
    """Although its own checksum is right."""
    find, key, value, message = LIES[lie]
    edit_manifest(folder, lambda manifest: find(manifest).update({key: value}))
    with pytest.raises(DataError, match=message) as caught:
        ChunkFolder(folder)
    assert str(folder) in str(caught.value)


@pytest.mark.parametrize("path", [(), ("schema",), ("chunks", 1)])
def test_a_field_that_is_missing_is_named(folder: Path, path: tuple[str | int, ...]) -> None:
    """Each one, in turn."""
    text = (folder / "manifest.json").read_text()
    for key in at(*path)(json.loads(text)):
        content = json.loads(text)
        del at(*path)(content)[key]
        (folder / "manifest.json").write_text(json.dumps(content))
        with pytest.raises(DataError, match=f"{key} is missing" if key != "format" else "no manifest"):
            ChunkFolder(folder)


def test_layout_of_the_text_does_not_matter(folder: Path) -> None:
    """A pretty-printer may have been at it."""
    path = folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()), indent=4, sort_keys=True))
    assert ChunkFolder(folder).num_rows == 100


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100_000, b'{"version": NaN}', b'{"version": ' + b"9" * 5000 + b"}"],
    ids=["empty", "cut off", "a list", "null", "no text", "nested", "NaN", "many digits"],
)
def test_what_is_no_manifest_is_refused(folder: Path, text: bytes) -> None:
    """Never anything but a DataError that names the file."""
    (folder / "manifest.json").write_bytes(text)
    with pytest.raises(DataError, match=r"manifest.json: "):
        ChunkFolder(folder)


def test_a_flipped_bit_in_the_manifest_is_never_silent(folder: Path) -> None:
    """Each byte; what still is the same manifest (white space, the case of an escape) may pass."""
    path = folder / "manifest.json"
    content = path.read_bytes()
    expected = ChunkFolder(folder).manifest
    for position in range(0, len(content), 2):
        damaged = bytearray(content)
        damaged[position] ^= 1 << position % 7
        path.write_bytes(damaged)
        # Anything but a DataError, and any other content, fails the test.
        with contextlib.suppress(DataError):
            assert ChunkFolder(folder).manifest == expected
