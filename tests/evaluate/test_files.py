"""Files of a reader: each is named with what it is taken for, or why it is left out."""

import gzip
import pickle
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from chicle_elastic.cli.main import main
from chicle_elastic.errors import UsageError
from chicle_elastic.evaluate.claims import Claim
from chicle_elastic.evaluate.files import Taken, read_folder

ROWS, IMAGES = 60, 40
JUDGED = ("same", "better", "not reproduced")


def higgs(path: Path, *, is_last: bool = False) -> None:
    """29 columns, compressed."""
    rng = np.random.default_rng(0)
    lines = []
    for number in range(ROWS):
        cells = [f"{value:.6e}" for value in rng.standard_normal(28)]
        label = f"{float(number % 2):.18e}"
        lines.append(",".join([*cells, label] if is_last else [label, *cells]))
    path.write_bytes(gzip.compress("\n".join(lines).encode() + b"\n"))


def criteo(path: Path, columns: int = 40) -> None:
    """Counts and categories between tabs, some of them missing."""
    rng = np.random.default_rng(0)
    lines = []
    for number in range(ROWS):
        counts = ["" if rng.random() < 0.2 else str(value) for value in rng.poisson(3, 13)]
        words = ["" if rng.random() < 0.2 else f"{value:08x}" for value in rng.integers(0, 1 << 32, 26)]
        lines.append("\t".join([str(number % 2), *counts, *words][40 - columns :]))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def pixels() -> tuple[np.ndarray, np.ndarray]:
    """Of CIFAR-10's shape, and labels."""
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (IMAGES, 3072), dtype=np.uint8), rng.integers(0, 10, IMAGES)


def read(folder: Path) -> tuple[Taken, dict[str, str]]:
    """What was taken, and the line of each file."""
    taken = read_folder(folder, 50)
    return taken, {name: text for name, _, text in (line.partition(": ") for line in taken.lines)}


def test_a_folder_of_everything_is_named_file_by_file(tmp_path: Path) -> None:
    """Rows are counted, and no more of them are read than were asked for; what is nothing is left out."""
    higgs(tmp_path / "HIGGS.csv.gz")
    criteo(tmp_path / "train.txt")
    (tmp_path / "a9a").write_text("".join(f"{1 - 2 * (n % 2):+d} 3:1 {n + 4}:0.5\n" for n in range(ROWS)))
    X, y = pixels()
    records = np.concatenate([y[:, None].astype(np.uint8), X], axis=1).tobytes()
    for name in ("data_batch_1.bin", "test_batch.bin"):
        (tmp_path / name).write_bytes(records)
    (tmp_path / "t-images-idx3-ubyte.gz").write_bytes(
        gzip.compress(struct.pack(">4I", 0x803, 9, 28, 28) + bytes(9 * 784))
    )
    (tmp_path / "t-labels-idx1-ubyte.gz").write_bytes(gzip.compress(struct.pack(">2I", 0x801, 9) + bytes(range(9))))
    (tmp_path / "README").write_text("nothing of use")
    taken, lines = read(tmp_path)
    assert lines["HIGGS.csv.gz"] == "taken for HIGGS, 50 rows"
    assert lines["train.txt"] == "taken for clicks in Criteo's format, 50 rows"
    assert lines["a9a"] == "taken for svmlight, 50 rows"
    assert lines["data_batch_1.bin"] == lines["test_batch.bin"] == "taken for CIFAR-10 images, 40 images"
    assert lines["t-images-idx3-ubyte.gz"] == "taken for IDX images, 9 images"
    assert lines["t-labels-idx1-ubyte.gz"] == "labels of the images beside it"
    assert lines["README"].startswith("left out: it begins with 'nothing of use', which is none of HIGGS")
    shapes = {data.title.split(" ")[0]: data.X.shape for data in taken.rows}
    assert shapes == {"HIGGS.csv.gz": (50, 28), "a9a": (50, 63), "train.txt": (50, (1 << 18) + 13)}
    assert all(sorted(np.unique(data.y)) == [0, 1] for data in taken.rows)
    [clicks] = [data.X for data in taken.rows if data.title.startswith("train.txt")]
    np.testing.assert_allclose(clicks.multiply(clicks).sum(axis=1), 1.0, rtol=1e-5)
    (cifar_title, cifar), (_, idx) = taken.images
    assert cifar_title.startswith("CIFAR-10 images")
    np.testing.assert_array_equal(cifar.X_train.reshape(IMAGES, -1), X)
    np.testing.assert_array_equal(cifar.y_test, y)
    assert (idx.X_train.shape, idx.X_test.shape) == ((7, 28, 28), (2, 28, 28))


def test_batches_of_the_python_version_are_read_and_not_loaded(tmp_path: Path) -> None:
    """Pixels and labels as they are; a pickle that would run code has not run it."""
    X, y = pixels()
    for protocol in (2, 4):
        batch = {
            b"batch_label": b"testing batch 1 of 1",
            b"labels": y.tolist(),
            b"data": X,
            b"filenames": [b"a.png"] * IMAGES,
        }
        (tmp_path / f"data_batch_{protocol}").write_bytes(pickle.dumps(batch, protocol=protocol))

    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return Path.touch, (tmp_path / "ran",)  # type: ignore[return-value]

    (tmp_path / "evil").write_bytes(pickle.dumps({b"data": Evil(), b"labels": [1]}, protocol=2))
    (tmp_path / "half").write_bytes((tmp_path / "data_batch_2").read_bytes()[:5000])
    taken, lines = read(tmp_path)
    assert lines["data_batch_2"] == lines["data_batch_4"] == "taken for CIFAR-10 images, 40 images"
    assert lines["evil"].startswith("left out: it is a pickle, and no batch of CIFAR-10; nothing of it was run")
    assert lines["half"].startswith("left out: it is a damaged pickle")
    assert not (tmp_path / "ran").exists()
    [(_, images)] = taken.images
    np.testing.assert_array_equal(
        np.concatenate([images.X_test, images.X_train]).reshape(-1, 3072).sum(), 2 * X.sum(dtype=np.int64)
    )


def broken(folder: Path) -> Iterator[tuple[str, str]]:
    """Files of the issue, and how their lines go on."""
    higgs(folder / "last.csv.gz", is_last=True)
    yield "last.csv.gz", "taken for HIGGS with the label last, 50 rows"
    higgs(folder / "whole.csv.gz")
    (folder / "cut.csv.gz").write_bytes((folder / "whole.csv.gz").read_bytes()[:400])
    yield "cut.csv.gz", "left out: the compressed data is damaged or cut off behind line"
    criteo(folder / "test.txt", columns=39)
    yield "test.txt", "left out: 39 columns: Criteo's test.txt has no labels; take train.txt, which has 40"
    (folder / "half.bin").write_bytes(bytes(3073 * 2 + 100))
    yield "half.bin", "left out: its 6246 bytes are no whole number of CIFAR-10's records"
    (folder / "one.csv").write_text("\n".join(",".join(["1"] + ["0.5"] * 28) for _ in range(9)))
    yield "one.csv", "left out: its first 9 rows have one class"
    (folder / "ragged.csv").write_text(",".join(["1"] * 29) + "\n" + ",".join(["0"] * 7))
    yield "ragged.csv", "left out: line 2 has 7 columns, and the first one 29"
    (folder / "noise").write_bytes(bytes(range(255, 0, -1)))
    yield "noise", "left out: it is no text, and no image file that is known"
    (folder / "empty").touch()
    yield "empty", "left out: it begins with ''"


def test_a_file_that_cannot_be_used_is_left_out_with_the_reason(tmp_path: Path) -> None:
    """Half there, cut off, of another layout: the others are used."""
    expected = dict(broken(tmp_path))
    _, lines = read(tmp_path)
    for name, words in expected.items():
        assert lines[name].startswith(words), lines[name]
    assert lines["whole.csv.gz"] == "taken for HIGGS, 50 rows"


def test_a_folder_without_data_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And one that is not there; so are numbers that cannot be."""
    with pytest.raises(UsageError, match="there is no such folder"):
        read_folder(tmp_path / "none", 5)
    (tmp_path / "README").write_text("nothing of use")
    for options in (["--data", str(tmp_path)], ["--only", "fig3"], ["--seeds", "0"], ["--rows", "5"]):
        assert main(["evaluate", "--out", str(tmp_path / "out"), *options]) == 2
    said = capsys.readouterr()
    assert "none of its files can be used" in said.err
    assert "there is no such figure; there are table1, fig1" in said.err


def test_an_evaluation_of_files_has_tables_pictures_and_claims(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Figure 1 of a small file; the second time no run is made again."""
    higgs(tmp_path / "HIGGS.csv.gz")
    command = ["evaluate", "--data", str(tmp_path), "--out", str(tmp_path / "out"), "--quick", "--only", "table1,fig1"]
    kept = []
    for _ in range(2):
        assert main(command) == 0
        out = capsys.readouterr().out
        assert "HIGGS.csv.gz: taken for HIGGS, 60 rows" in out
        assert "| CoCoA, HIGGS.csv.gz (HIGGS), 60 rows, C = 1.67: epochs by tasks | 1e-01 | 1: " in out
        [start, claims] = out.split(f"claims of the paper, files of {tmp_path}")
        assert "| not judged |" in start
        assert not any(f"| {verdict} |" in claims for verdict in JUDGED)
        assert "| table 1 | rows of HIGGS.csv.gz (HIGGS), 60 rows | 11 million | 6e-05 million | not judged |" in claims
        for figure in ("1", "2, 3", "4, 9", "5, 10", "6", "7", "8", "11"):
            assert f"\n| {figure} | " in claims
        assert "| 11 | local SGD, balancing: time of an iteration over the ideal | 1 |  | not measured |" in claims
        kept.append({path.name: path.stat().st_mtime_ns for path in (tmp_path / "out/cache").iterdir()})
    assert kept[0] == kept[1]
    assert len(kept[0]) == 4
    pytest.importorskip("matplotlib")
    assert (tmp_path / "out/fig1.png").stat().st_size > 0
    assert (tmp_path / "out/fig1-curves.png").stat().st_size > 0


@pytest.mark.parametrize(
    ("there", "here", "is_less_better", "verdict"),
    [
        (65.0, [60.0, 70.0, 66.0], False, "same"),
        (65.0, [90.0, 91.0, 92.0], False, "better"),
        (65.0, [20.0, 21.0, 22.0], False, "not reproduced"),
        (1.0, [0.5, 0.6], True, "better"),
        (1.0, [1.04], True, "same"),
        (1.0, [1.5], True, "not reproduced"),
        (1.0, [], True, "not measured"),
        (1.0, [float("inf")], True, "not measured"),
        (None, [1.0], True, "no number"),
    ],
)
def test_a_verdict_is_by_rule(there: float | None, here: list[float], is_less_better: bool, verdict: str) -> None:
    """Within two standard errors or a tenth it is the same, else its side decides."""
    claim = Claim(figure="1", what="x", there=there, here=here, is_less_better=is_less_better)
    assert claim.verdict(judged=True) == verdict
    assert verdict in claim.as_markdown(judged=True)
    assert claim.verdict(judged=False) == ("not judged" if verdict in JUDGED else verdict)
