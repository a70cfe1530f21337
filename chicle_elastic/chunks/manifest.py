"""`manifest.json`: what a chunk folder holds. It may have been edited or made up, so nothing in it is believed.

    {"format": "chicle chunk folder", "version": 1,
     "schema": the fields of `views.DataSchema`,
     "index_dtype": "int32" or "int64" for CSR, "" for dense rows,
     "weight_dtype": "float32", "float64", or "" where there are no weights,
     "classes": the labels by class code, numbers or strings; [] for real-valued targets,
     "chunks": [{"file": "chunk-000000.bin", "size_bytes", "num_rows", "crc32"}, ...] by chunk id,
     "crc32": of all the above as compact JSON with sorted keys}

`crc32` of a chunk is that of its header, which covers the CRC of its content (`layout`). Checksums are 8 hex digits.
"""

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from chicle_elastic.chunks.headers import CSR_VALUE_DTYPES, FILE_KINDS, Header, crc_of
from chicle_elastic.chunks.json_fields import ADVICE, Fields, shown
from chicle_elastic.chunks.views import (
    INDEX_DTYPES,
    NO_STATE,
    TARGET_DTYPES,
    VALUE_DTYPES,
    WEIGHT_DTYPES,
    DataSchema,
)
from chicle_elastic.errors import DataError
from chicle_elastic.ids import ChunkId

MANIFEST_NAME: Final = "manifest.json"
CHUNK_PREFIX: Final = "chunk-"
FORMAT: Final = "chicle chunk folder"
VERSION: Final = 1
READABLE_VERSIONS = range(1, VERSION + 1)

Label: TypeAlias = int | float | str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkFile:
    """One chunk of a folder."""

    name: str
    size_bytes: int
    num_rows: int
    crc: int  # CRC-32 of the chunk's header

    def to_json(self) -> dict[str, str | int]:
        """The object in the manifest."""
        return {
            "file": self.name,
            "size_bytes": self.size_bytes,
            "num_rows": self.num_rows,
            "crc32": f"{self.crc:08x}",
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a chunk folder holds; the attributes are those of the file, see above."""

    schema: DataSchema
    index_dtype: str
    weight_dtype: str
    classes: tuple[Label, ...]
    chunks: tuple[ChunkFile, ...]

    def to_json(self) -> str:
        """The text of the file."""
        content: dict[str, Any] = {
            "format": FORMAT,
            "version": VERSION,
            "schema": dataclasses.asdict(self.schema) | {"sample_shape": list(self.schema.sample_shape)},
            "index_dtype": self.index_dtype,
            "weight_dtype": self.weight_dtype,
            "classes": list(self.classes),
            "chunks": [file.to_json() for file in self.chunks],
        }
        content["crc32"] = f"{_crc(content):08x}"
        lines = [f"{json.dumps(key)}: {_value_text(value)}" for key, value in content.items()]
        return "{\n" + ",\n".join(lines) + "\n}\n"

    @classmethod
    def from_json(cls, text: str, *, where: str) -> "Manifest":
        """Parse and check the text of the file. Raises DataError when it is no manifest, or one of an unknown version,
        or its figures cannot be true."""
        try:
            content = json.loads(text, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{where}: this is no JSON ({error}); {ADVICE}") from error
        fields = Fields(content, where)
        _require_version(fields, where)
        schema = _schema(fields)
        is_csr = schema.kind == "csr"
        classes = _classes(fields, schema.num_classes)
        manifest = cls(
            schema=schema,
            index_dtype=fields.one_of("index_dtype", INDEX_DTYPES if is_csr else ("",)),
            weight_dtype=fields.one_of("weight_dtype", WEIGHT_DTYPES if schema.has_weights else ("",)),
            classes=classes,
            chunks=_chunks(fields),
        )
        _check_sizes(manifest, where)
        num_rows = sum(file.num_rows for file in manifest.chunks)
        if num_rows != schema.num_rows:
            raise DataError(
                f"{where}: the chunks have {num_rows} rows together, but the schema says {schema.num_rows}; {ADVICE}"
            )
        stored = fields.checksum("crc32")
        found = _crc({key: value for key, value in content.items() if key != "crc32"})
        if found != stored:
            raise DataError(
                f"{where}: the manifest was changed after it was written: its CRC is {found:08x} and should be "
                f"{stored:08x}; {ADVICE}"
            )
        return manifest


def _require_version(fields: Fields, where: str) -> None:
    if fields.content.get("format") != FORMAT:
        raise DataError(f"{where}: this is no manifest of a chunk folder (its format is not {FORMAT!r}); {ADVICE}")
    version = fields.number("version", at_least=1)
    if version not in READABLE_VERSIONS:
        raise DataError(
            f"{where}: the chunk folder has format version {version}, and this Chicle reads versions "
            f"{READABLE_VERSIONS[0]} to {READABLE_VERSIONS[-1]}; upgrade chicle-elastic, or convert the data again"
        )


def _schema(fields: Fields) -> DataSchema:
    schema = Fields(fields.get("schema", dict, "an object"), fields.where, "schema.")
    kind: Any = schema.one_of("kind", FILE_KINDS)
    num_features = schema.number("num_features", at_least=1)
    sample_shape = schema.items("sample_shape")
    if any(type(length) is not int or length < 1 for length in sample_shape) or (
        sample_shape and math.prod(sample_shape) != num_features
    ):
        raise schema.refused("sample_shape", f"is {shown(sample_shape)}, but there are {num_features} features")
    target_dtype = schema.one_of("target_dtype", TARGET_DTYPES)
    num_classes = schema.number("num_classes", at_least=0)
    if num_classes and target_dtype != "int32":
        raise schema.refused("num_classes", f"is {num_classes}, but targets of dtype {target_dtype} are no class codes")
    return DataSchema(
        kind=kind,
        dtype=schema.one_of("dtype", CSR_VALUE_DTYPES if kind == "csr" else VALUE_DTYPES),
        num_rows=schema.number("num_rows", at_least=1),
        num_features=num_features,
        target_dtype=target_dtype,
        num_classes=num_classes,
        has_weights=schema.flag("has_weights"),
        sample_shape=tuple(sample_shape),
    )


def _classes(fields: Fields, num_classes: int) -> tuple[Label, ...]:
    classes = fields.items("classes")
    if any(type(label) not in (int, float, str) for label in classes):
        raise fields.refused("classes", "has to hold numbers or strings only")
    if len(classes) != num_classes or len(set(classes)) != num_classes:
        raise fields.refused(
            "classes", f"has {len(set(classes))} different labels, but schema.num_classes={num_classes}"
        )
    return tuple(classes)


def _chunks(fields: Fields) -> tuple[ChunkFile, ...]:
    files = []
    names = set()
    for number, item in enumerate(fields.items("chunks")):
        chunk = Fields(item, fields.where, f"chunks[{number}].")
        name = chunk.text("file")
        if name in ("", ".", "..", MANIFEST_NAME) or any(character in name for character in "/\\\0:"):
            raise chunk.refused("file", f"is {shown(name)}, and has to be the name of a file in the folder itself")
        if name in names:
            raise chunk.refused("file", f"is {shown(name)}, which another chunk has already")
        names.add(name)
        files.append(
            ChunkFile(
                name=name,
                size_bytes=chunk.number("size_bytes", at_least=1),
                num_rows=chunk.number("num_rows", at_least=1),
                crc=chunk.checksum("crc32"),
            )
        )
    if not files:
        raise fields.refused("chunks", "is empty")
    return tuple(files)


def _check_sizes(manifest: Manifest, where: str) -> None:
    """Refuse sizes that the row counts cannot have: memory is reserved by them before a chunk is read."""
    schema = manifest.schema
    least_bytes: dict[int, int] = {}  # by number of rows; nearly all chunks have the same
    for number, file in enumerate(manifest.chunks):
        if file.num_rows not in least_bytes:
            header = Header(
                chunk_id=ChunkId(number),
                kind=schema.kind,
                value_dtype=schema.dtype,
                index_dtype=manifest.index_dtype,
                target_dtype=schema.target_dtype,
                weight_dtype=manifest.weight_dtype,
                num_rows=file.num_rows,
                num_features=schema.num_features,
            )
            least_bytes[file.num_rows] = header.encoded_bytes(NO_STATE)
        least = least_bytes[file.num_rows]
        if file.size_bytes < least or (schema.kind == "dense" and file.size_bytes != least):
            raise DataError(
                f"{where}: chunks[{number}] ({file.name!r}) is said to have {file.num_rows} rows in {file.size_bytes} "
                f"bytes, but they take {'at least ' if schema.kind == 'csr' else ''}{least} bytes; {ADVICE}"
            )


def _crc(content: Mapping[str, Any]) -> int:
    return crc_of(json.dumps(content, sort_keys=True, separators=(",", ":")).encode())


def _value_text(value: Any) -> str:
    """Compact JSON; a list of objects with one object a line, so that the file can be read and compared."""
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "[\n" + ",\n".join(f"  {json.dumps(item)}" for item in value) + "\n]"
    return json.dumps(value)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")
