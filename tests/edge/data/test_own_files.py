"""Files as people have them: which examples, clients, classes and parts each form gives, and what is said of it."""

from __future__ import annotations

import io
import json
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from edge.data.arrays import Arrays
from edge.data.own_files import find, kept, read
from edge.data.registry import DataError
from edge.protocol.config import FileReading


def data_of(path: Path, **reading: Any) -> Arrays:
    return read(path, find(path), FileReading(**reading))


def by_client(data: Arrays) -> dict[str, tuple[int, int]]:
    """Client -> its training and test examples."""
    train, test = (Counter(map(str, ids.tolist())) for ids in (data.train.ids, data.test.ids) if ids is not None)
    return {name: (train[name], test[name]) for name in {**train, **test}}


def table(file: Path, rows: Sequence[Sequence[object]], header: str = "client,label,a,b") -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n")
    return file


def image(file: Path, shade: int, size: tuple[int, int] = (4, 4), mode: str = "L") -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, shade if mode == "L" else (shade, 0, 0)).save(file)
    return file


ROWS = [(name, ("cat", "dog")[place % 2], place, place / 2) for name in ("ann", "bo") for place in range(10)]


def test_a_table_has_a_row_for_each_example_and_a_column_of_clients(tmp_path: Path) -> None:
    data = data_of(table(tmp_path / "pets.csv", [*ROWS, ("cy", "cat", 3, 1.5)]))
    # A fifth of each client's examples is the test set; a client of one example trains with it.
    assert by_client(data) == {"ann": (8, 2), "bo": (8, 2), "cy": (1, 0)}
    assert (data.class_names, data.row.kind, data.row.shape) == (("cat", "dog"), "features", (2,))
    assert data.client_names == ("ann", "bo", "cy") == data.decoded.names.clients
    assert data.notes == (
        "pets.csv: 21 examples, classes by column label, 3 clients by column client, features a, b",
        "0.2 of each client's examples are the test set (data.reading.test)",
    )
    assert data.row.name == "pets"
    assert data.decoded.form == "read from pets.csv"


def test_columns_of_other_names_are_named(tmp_path: Path) -> None:
    rows = [(7, name, label, place) for name, label, place, _ in ROWS]
    file = table(tmp_path / "t.csv", rows, "weight,writer,state,speed")
    data = data_of(file, client="writer", label="state", features=("speed",), test=0.5)
    assert by_client(data) == {"ann": (5, 5), "bo": (5, 5)}
    assert data.row.shape == (1,)
    assert "t.csv: not used: weight" in data.notes


def test_tables_of_spreadsheets_have_semicolons_decimal_commas_and_a_mark_in_front(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_bytes("﻿client;label;a\r\nx;0;1,5\r\nx;1;-2,25\r\n\r\nx;0;3\r\nx;1;4\r\nx;1;4\r\n".encode())
    data = data_of(file)
    assert sorted([*data.train.x[:, 0], *data.test.x[:, 0]]) == [-2.25, 1.5, 3, 4, 4]


def test_a_split_column_says_what_is_test_and_validation(tmp_path: Path) -> None:
    rows = [("a", place % 2, place, ("train", "train", "val", "test")[place % 4]) for place in range(16)]
    data = data_of(table(tmp_path / "t.csv", rows, "client,label,x,split"))
    assert by_client(data) == {"a": (12, 4)}
    assert data.notes[1] == (
        "validation examples are among those of training; data.validation holds some of each client's out"
    )
    two = [row for row in rows if row[3] != "test"]
    held = data_of(table(tmp_path / "u.csv", two, "client,label,x,split"))
    assert (by_client(held), held.notes[1]) == ({"a": (8, 4)}, "the validation examples are the test set")


def test_gaps_are_refused_left_out_or_filled_with_the_clients_mean(tmp_path: Path) -> None:
    rows = [("a", 0, 1), ("a", 1, "?"), ("a", 0, 3), ("b", 1, 10), ("b", 0, "NaN"), ("b", 1, 20)]
    parts = [(*row, "train") for row in rows] + [("b", 1, "", "test"), ("a", 0, 5, "test")]
    file = table(tmp_path / "t.csv", parts, "client,label,x,split")
    with pytest.raises(DataError, match=r"t.csv, line 3, column x: '\?' is no number; data.reading.missing = drop"):
        data_of(file)
    filled = data_of(file, missing="mean")
    assert (filled.train.x[:, 0].tolist(), filled.test.x[:, 0].tolist()) == ([1, 2, 3, 10, 15, 20], [15, 5])
    dropped = data_of(file, missing="drop")
    assert (dropped.train.x[:, 0].tolist(), dropped.test.x[:, 0].tolist()) == ([1, 3, 10, 20], [5])
    assert dropped.notes[-1] == "3 examples without all numbers left out"


@pytest.mark.parametrize(
    ("labels", "names", "classes"),
    [
        ([0, 1, 2], (), 3),
        ([-1, 1, 1], ("-1", "1"), 2),
        ([10, 2, 1], ("1", "2", "10"), 3),
        ([0.5, 10, 2], ("0.5", "2", "10"), 3),
        (["up", "down", "up"], ("down", "up"), 2),
    ],
)
def test_labels_that_are_no_numbers_from_0_are_classes_by_name(
    tmp_path: Path, labels: list[object], names: tuple[str, ...], classes: int
) -> None:
    rows = [("a", label, place) for place in range(10) for label in labels]
    data = data_of(table(tmp_path / "t.csv", rows, "client,label,x"))
    assert (data.class_names, data.row.classes) == (names, classes)


def test_labels_with_holes_are_noted_and_may_be_listed(tmp_path: Path) -> None:
    file = table(tmp_path / "t.csv", [("a", (0, 3, 7, 250)[place % 4], place) for place in range(40)], "client,label,x")
    assert data_of(file).notes[-1].startswith("247 of 251 classes have no training example")
    listed = data_of(file, classes=("0", "3", "7", "250"))
    assert (listed.row.classes, listed.class_names) == (4, ("0", "3", "7", "250"))


def test_each_client_has_a_file(tmp_path: Path) -> None:
    for name, count in (("cam1", 10), ("cam2", 5)):
        table(tmp_path / "cams" / f"{name}.csv", [(place % 2, place) for place in range(count)], "label,x")
    data = data_of(tmp_path / "cams")
    assert by_client(data) == {"cam1": (8, 2), "cam2": (4, 1)}
    assert (
        data.notes[0]
        == "cams: 15 examples in 2 files, classes by column label, 2 clients by file or folder, features x"
    )


def test_each_client_has_a_folder_with_its_parts(tmp_path: Path) -> None:
    for name in ("cam1", "cam2"):
        for part, count in (("train", 6), ("test", 2)):
            table(tmp_path / "cams" / name / f"{part}.csv", [(place % 2, place) for place in range(count)], "label,x")
    assert by_client(data_of(tmp_path / "cams")) == {"cam1": (6, 2), "cam2": (6, 2)}


def test_arrays_of_each_client_are_in_npz_files_of_train_and_test(tmp_path: Path) -> None:
    for part, count in (("train", 6), ("test", 2)):
        for client in (0, 1):
            (tmp_path / "set" / part).mkdir(parents=True, exist_ok=True)
            x, y = np.full((count, 3, 4), client, np.float32), np.arange(count) % 2
            np.savez(tmp_path / "set" / part / f"{client}.npz", x=x, y=y)
    data = data_of(tmp_path / "set", kind="series")
    assert (by_client(data), data.row.shape) == ({"0": (6, 2), "1": (6, 2)}, (3, 4))


def test_one_npz_file_has_the_arrays_of_both_parts(tmp_path: Path) -> None:
    x, y = np.zeros((6, 8, 8), np.uint8), np.arange(6) % 3
    np.savez(tmp_path / "a.npz", x_train=x, y_train=y, x_test=x[:3], y_test=y[:3])
    data = data_of(tmp_path / "a.npz")
    assert (len(data.train.y), len(data.test.y), data.row.shape) == (6, 3, (1, 8, 8))
    np.savez(tmp_path / "b.npz", x=x, y=np.arange(6) // 3, client=["ann", "bo"] * 3)
    assert by_client(data_of(tmp_path / "b.npz", test=0.34)) == {"ann": (2, 1), "bo": (2, 1)}


def hub_table(count: int, **columns: Any) -> pa.Table:
    """A table as data sets of the Hub are: encoded images, and classes with names in the metadata."""
    encoded = io.BytesIO()
    Image.new("L", (4, 4), 9).save(encoded, "PNG")
    images = pa.array([{"bytes": encoded.getvalue(), "path": None}] * count)
    made = pa.table({"image": images, **{name: pa.array(values) for name, values in columns.items()}})
    features = {"character": {"names": ["b", "a"], "_type": "ClassLabel"}}
    about = {"huggingface": json.dumps({"info": {"features": features}})}
    return made.replace_schema_metadata(about)


def test_parquet_of_the_hub_has_shards_named_classes_and_a_column_of_writers(tmp_path: Path) -> None:
    (tmp_path / "set" / "data").mkdir(parents=True)
    for shard in range(2):
        shown = hub_table(10, character=[0, 1] * 5, writer_id=[f"f{shard}"] * 10, hsf_id=[1] * 10)
        pq.write_table(shown, tmp_path / "set" / "data" / f"train-0000{shard}-of-00002.parquet")
    data = data_of(tmp_path / "set", label="character", client="writer_id")
    assert by_client(data) == {"f0": (8, 2), "f1": (8, 2)}
    assert (data.class_names, data.row.kind, data.row.shape) == (("b", "a"), "image", (1, 4, 4))
    assert data.notes[:2] == (
        "set: 20 examples in 2 files, classes by column character, 2 clients by column writer_id",
        "set: not used: hsf_id",
    )


def test_partitions_of_flower_datasets_are_folders_of_arrow_files(tmp_path: Path) -> None:
    for number in range(2):
        folder = tmp_path / "saved" / f"partition_{number}"
        folder.mkdir(parents=True)
        (folder / "state.json").write_text('{"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}')
        (folder / "dataset_info.json").write_text("{}")
        made = hub_table(5, character=[0, 1, 0, 1, 0])
        with (
            pa.OSFile(str(folder / "data-00000-of-00001.arrow"), "wb") as file,
            pa.ipc.new_stream(file, made.schema) as out,
        ):
            out.write_table(made)
    data = data_of(tmp_path / "saved", label="character")
    assert by_client(data) == {"partition_0": (4, 1), "partition_1": (4, 1)}


def test_leafs_users_have_training_and_test_files(tmp_path: Path) -> None:
    for part, counts in (("train", {"f_00000": 4, "f_00001": 1}), ("test", {"f_00000": 2, "f_00001": 0})):
        about = {
            "users": list(counts),
            "num_samples": list(counts.values()),
            "user_data": {
                user: {
                    "x": [[place / 255, 1.0] for place in range(count)],
                    "y": [float(place % 2) for place in range(count)],
                }
                for user, count in counts.items()
            },
        }
        (tmp_path / "leaf" / part).mkdir(parents=True)
        (tmp_path / "leaf" / part / f"all_data_0_keep_0_{part}_9.json").write_text(json.dumps(about))
    data = data_of(tmp_path / "leaf")
    assert by_client(data) == {"f_00000": (4, 2), "f_00001": (1, 0)}
    assert (data.row.kind, data.row.classes) == ("features", 2)
    pixels = data_of(tmp_path / "leaf", kind="image", shape=(1, 1, 2))
    assert (pixels.train.x[:2].tolist(), pixels.row.kind) == ([[[[0, 255]]], [[[1, 255]]]], "image")
    assert "pixels from 0 to 1 are taken 255 times" in pixels.notes


def test_leafs_texts_are_tokens_of_characters(tmp_path: Path) -> None:
    about = {
        "users": ["ROMEO"],
        "user_data": {"ROMEO": {"x": ["ab", "b", "ba", "é", "a"], "y": ["c", "a", "c", "a", "c"]}},
    }
    (tmp_path / "plays.json").write_text(json.dumps(about))
    data = data_of(tmp_path / "plays.json")
    tokens = {tuple(row) for row in [*data.train.x.tolist(), *data.test.x.tolist()]}
    assert tokens == {(97, 98), (98, 0), (98, 97), (127, 0), (97, 0)}
    assert (data.row.kind, data.class_names) == ("tokens", ("a", "c"))


def test_images_are_in_a_folder_of_each_client_and_class(tmp_path: Path) -> None:
    for client in ("site_0", "site_1"):
        for shade, label in ((10, "cat"), (90, "dog")):
            for number in range(5):
                image(tmp_path / "photos" / "train" / client / label / f"{number}.png", shade)
    (tmp_path / "photos" / "Thumbs.db").write_text("")
    data = data_of(tmp_path / "photos")
    assert by_client(data) == {"site_0": (8, 2), "site_1": (8, 2)}
    assert (data.class_names, data.row.shape) == (("cat", "dog"), (1, 4, 4))
    assert set(data.train.x[data.train.y == 1].reshape(-1).tolist()) == {90}


def test_images_of_class_folders_without_clients_are_scaled_where_a_side_is_given(tmp_path: Path) -> None:
    for part, count in (("train", 3), ("val", 1)):
        for label in ("cat", "dog"):
            for number in range(count):
                image(tmp_path / "photos" / part / label / f"{number}.jpg", 9, (6 + number, 8), "RGB")
    with pytest.raises(DataError, match=r"1.jpg: is 7x8; .*0.jpg is 6x8: data.reading.side = 32 scales all to 32x32"):
        data_of(tmp_path / "photos")
    data = data_of(tmp_path / "photos", side=4)
    assert (len(data.train.y), len(data.test.y), data.row.shape) == (6, 2, (3, 4, 4))
    assert data.train.ids is None


def test_a_class_that_only_the_test_folder_has_is_an_error(tmp_path: Path) -> None:
    for name in ("train/cat/0.png", "train/dog/0.png", "test/cat/0.png", "test/emu/0.png"):
        image(tmp_path / "photos" / name, 9)
    with pytest.raises(DataError, match="class emu has no training example"):
        data_of(tmp_path / "photos")


def test_fedscales_mapping_names_the_image_of_each_example(tmp_path: Path) -> None:
    rows = []
    for client in (3, 12):
        for number in range(5):
            image(tmp_path / "images" / f"{client}_{number}.png", client)
            rows.append((client, f"images/{client}_{number}.png", ("bat", "cap")[number % 2], number % 2))
    file = table(tmp_path / "mapping.csv", rows, "client_id,sample_path,label_name,label_id")
    data = data_of(file)
    assert by_client(data) == {"3": (4, 1), "12": (4, 1)}
    assert (data.row.kind, data.decoded.names.clients) == ("image", ("3", "12"))
    (tmp_path / "images" / "12_4.png").unlink()
    with pytest.raises(DataError, match=r"mapping.csv, line 11, column sample_path: no such file: .*12_4.png"):
        data_of(file)


REFUSED = [
    ("label,x\n0,1\n1\n", {}, "line 3: has 1 cells, the header 2"),
    ("label,x\n", {}, "has no examples below a header"),
    ("0,1\n1,2\n", {}, "line 1: has numbers alone; a header that names the columns is wanted"),
    ("label,x,x\n0,1,2\n", {}, "line 1: column 'x' is there twice"),
    ("kind,x\n0,1\n", {}, "which column is the label? Say data.reading.label; it has kind, x"),
    ("label,x\n0,1\n", {"label": "lable"}, "data.reading.label: has no column 'lable'; did you mean 'label'?"),
    ("label,x\n0,1\n,2\n", {}, "line 3, column label: the label is missing"),
    ("label,x,city\n0,1,Rome\n", {}, "line 2, column city: 'Rome' is no number; data.reading.features names the"),
    ("label,client,x\n0,a,1\n1,,1\n", {}, "line 3, column client: the client is missing"),
    ("label,split,x\n0,trian,1\n", {}, "line 2, column split: 'trian' is no part; did you mean 'train'?"),
    ("label,x\n0,1_000\n", {}, "line 2, column x: '1_000' is no number"),
    ("label\n0\n", {}, "has no column of features beside label"),
]


@pytest.mark.parametrize(("text", "reading", "why"), REFUSED)
def test_what_is_no_table_is_refused_by_line_and_column(
    tmp_path: Path, text: str, reading: dict[str, Any], why: str
) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(DataError) as refused:
        data_of(tmp_path / "t.csv", **reading)
    assert f"t.csv{',' if why.startswith('line') else ':'} {why}" in str(refused.value)


def test_files_of_several_forms_or_columns_are_refused(tmp_path: Path) -> None:
    table(tmp_path / "a" / "1.csv", [(0, 1)], "label,x")
    table(tmp_path / "a" / "2.csv", [(0, 1)], "label,z")
    with pytest.raises(DataError, match=r"2.csv: has the columns z; .*1.csv has x"):
        data_of(tmp_path / "a")
    image(tmp_path / "a" / "cat" / "3.png", 1)
    with pytest.raises(DataError, match=r"has files of several forms, such as .*; keep one"):
        data_of(tmp_path / "a")
    with pytest.raises(DataError, match="b: no such file or folder"):
        find(tmp_path / "b")
    (tmp_path / "b").mkdir()
    with pytest.raises(DataError, match=r"b: has no file of a known form \(.csv, .tsv,"):
        find(tmp_path / "b")


def test_a_file_is_read_once_and_again_when_it_has_changed(tmp_path: Path) -> None:
    file, cache = table(tmp_path / "t.csv", ROWS), tmp_path / "cache"
    first = kept(file, FileReading(), cache)
    assert first.clients == 2
    assert first.name.startswith("t/features-0/2/2/")
    assert kept(file, FileReading(), cache) == first
    assert kept(file, FileReading(test=0.5), cache) != first
    table(file, ROWS[:12])
    assert kept(file, FileReading(), cache).name != first.name


def csv_of(file: Path, header: str, rows: Sequence[str]) -> Path:
    return table(file, [(row,) for row in rows], header)


def savez(file: Path, arrays: dict[str, Any]) -> None:
    np.savez(file, **arrays)


def test_labels_of_seven_digits_stay_apart(tmp_path: Path) -> None:
    file = csv_of(tmp_path / "t.csv", "label,x", [f"{1_000_001 + place % 2},{place}" for place in range(10)])
    assert data_of(file).class_names == ("1000001", "1000002")


def test_a_number_of_classes_leaves_labels_that_are_numbers_as_they_are(tmp_path: Path) -> None:
    file = csv_of(tmp_path / "t.csv", "label,x", [f"{place % 11},{place}" for place in range(44)])
    data = data_of(file, classes=12)
    assert (data.row.classes, data.class_names) == (12, ())
    assert {(y, x % 11) for y, (x,) in zip(data.train.y.tolist(), data.train.x.tolist(), strict=True)} == {
        (label, label) for label in range(11)
    }
    words = csv_of(tmp_path / "w.csv", "label,x", [f"{('cat', 'dog')[place % 2]},{place}" for place in range(10)])
    with pytest.raises(DataError, match=r"data.reading.classes = 3: there are 2 labels, which are not 0"):
        data_of(words, classes=3)


def test_labels_that_are_numbers_and_texts_are_noted(tmp_path: Path) -> None:
    file = csv_of(tmp_path / "t.csv", "label,x", [f"{(0, 1, 'cat')[place % 3]},{place}" for place in range(12)])
    data = data_of(file)
    assert data.class_names == ("0", "1", "cat")
    assert "some labels are numbers and some are texts: 0, 1, cat" in data.notes


def test_labels_in_a_column_of_one_are_labels_and_rows_of_several_are_refused(tmp_path: Path) -> None:
    x, y = np.arange(20.0).reshape(10, 2), np.arange(10) % 2
    np.savez(tmp_path / "t.npz", x=x, y=y[:, None], client=np.array([b"ann", b"bo"] * 5))
    data = data_of(tmp_path / "t.npz")
    assert (data.row.classes, data.class_names, data.client_names) == (2, (), ("ann", "bo"))
    np.savez(tmp_path / "t.npz", x=x, y=np.eye(2)[y])
    with pytest.raises(DataError, match=r"t.npz, column y: has \(2,\) values of each example, not one; numpy.argmax"):
        data_of(tmp_path / "t.npz")


def test_clients_are_told_apart_as_they_are_written(tmp_path: Path) -> None:
    names = ("007", "7", "٧", "12345678901234567890")
    file = csv_of(
        tmp_path / "t.csv", "client,label,x", [f"{names[place % 4]},{place // 4 % 2},1" for place in range(40)]
    )
    assert data_of(file).client_names == ("007", "12345678901234567890", "7", "٧")
    counted = csv_of(tmp_path / "c.csv", "client,label,x", [f"{place % 11},{place % 2},1" for place in range(44)])
    assert data_of(counted).client_names == tuple(map(str, range(11)))


def test_a_client_with_test_examples_alone_takes_no_part_and_shifts_no_name(tmp_path: Path) -> None:
    parts = ((0, "test"), (1, "train"), (1, "test"), (2, "train"))
    rows = [f"{who},{part},{place % 2},{place}" for who, part in parts for place in range(4)]
    data = data_of(csv_of(tmp_path / "t.csv", "client,split,label,x", rows))
    assert (data.client_names, data.decoded.names.clients) == (("1", "2"), ("0", "1", "2"))
    assert "1 of 3 clients have test examples alone, and take no part" in data.notes


def test_a_client_whose_examples_are_all_left_out_is_noted(tmp_path: Path) -> None:
    rows = [f"{who},{place % 2},{'' if who == 'ann' else place}" for who in ("ann", "bo") for place in range(6)]
    data = data_of(csv_of(tmp_path / "t.csv", "client,label,x", rows), missing="drop")
    assert data.client_names == ("bo",)
    assert "1 client without an example with all numbers left out" in data.notes


def test_columns_that_number_the_rows_are_no_features(tmp_path: Path) -> None:
    rows = [f"{place},{place % 2},{place * 2}," for place in range(10)]
    data = data_of(csv_of(tmp_path / "t.csv", ",label,x,Unnamed: 0", rows))
    assert data.row.shape == (1,)
    assert "t.csv: not used: a column without a name, Unnamed: 0" in data.notes


def test_another_column_that_looks_like_a_label_is_noted_as_a_feature(tmp_path: Path) -> None:
    file = csv_of(tmp_path / "t.csv", "label,target,x", [f"{place % 2},{place % 2},{place}" for place in range(10)])
    assert "target is among the features; data.reading.label names another label" in data_of(file).notes
    assert not any("among" in note for note in data_of(file, features=("target", "x")).notes)


def test_rows_of_whole_numbers_are_noted_as_tokens(tmp_path: Path) -> None:
    np.savez(tmp_path / "t.npz", x=np.arange(20).reshape(10, 2), y=np.arange(10) % 2)
    data = data_of(tmp_path / "t.npz")
    assert data.row.kind == "tokens"
    assert data.notes[-1].startswith("rows of whole numbers are taken as tokens; data.reading.kind = features")
    assert data_of(tmp_path / "t.npz", kind="features").row.kind == "features"


def test_arrays_have_parts_as_people_name_them(tmp_path: Path) -> None:
    x, y = np.arange(12.0).reshape(6, 2), np.arange(6) % 2
    for names in (("X_train", "Y_train", "X_test", "Y_test"), ("trainX", "trainy", "testX", "testy")):
        savez(tmp_path / "t.npz", dict(zip(names, (x, y, x[:4], y[:4]), strict=True)))
        data = data_of(tmp_path / "t.npz")
        assert (len(data.train.y), data.test.x.tolist()) == (6, x[:4].tolist())
    of_parts = {
        f"{part}_{what}": array for part in ("train", "val", "test") for what, array in (("images", x), ("labels", y))
    }
    savez(tmp_path / "t.npz", of_parts)
    data = data_of(tmp_path / "t.npz")
    assert (len(data.train.y), len(data.test.y)) == (12, 6)
    np.savez(tmp_path / "t.npz", x=x, y=y, latest=y)
    assert "t.npz: not used: latest" in data_of(tmp_path / "t.npz", test=0.4).notes


@pytest.mark.parametrize("name", ["client", "client_train"])
def test_an_array_of_one_part_alone_is_refused(tmp_path: Path, name: str) -> None:
    x, y = np.arange(12.0).reshape(6, 2), np.arange(6) % 2
    savez(tmp_path / "t.npz", {"x_train": x, "y_train": y, "x_test": x, "y_test": y, name: y})
    with pytest.raises(DataError, match=r"t.npz: has the array client of the train part, but none of the test part"):
        data_of(tmp_path / "t.npz")


def test_a_part_with_examples_of_another_shape_is_refused(tmp_path: Path) -> None:
    y = np.arange(6) % 2
    np.savez(tmp_path / "t.npz", x_train=np.ones((6, 2)), y_train=y, x_test=np.ones((6, 3)), y_test=y)
    with pytest.raises(
        DataError, match=r"x has examples of shape \(3,\) in the test part, of \(2,\) in the train part"
    ):
        data_of(tmp_path / "t.npz")


def test_damaged_archives_are_refused(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).random((200, 50))
    np.savez_compressed(tmp_path / "t.npz", x=noise, y=np.arange(200) % 2)
    raw = (tmp_path / "t.npz").read_bytes()
    np.save(tmp_path / "single.npy", noise)
    for damaged, why in (
        (raw[:60] + bytes(range(200, 230)) + raw[90:], "cannot be read: "),
        (raw[: len(raw) // 2], "is no archive of arrays; numpy.savez makes one"),
        ((tmp_path / "single.npy").read_bytes(), "is no archive of arrays"),
        (b"", "is no archive of arrays"),
    ):
        (tmp_path / "t.npz").write_bytes(damaged)
        with pytest.raises(DataError, match=f"t.npz: {why}"):
            data_of(tmp_path / "t.npz")
    np.savez(tmp_path / "t.npz", x=noise[:0], y=np.arange(0))
    with pytest.raises(DataError, match=r"t.npz: has no examples"):
        data_of(tmp_path / "t.npz")


@pytest.mark.parametrize(
    ("about", "why"),
    [
        (
            {"users": ["u", "v"], "user_data": {"u": {"x": [[1]], "y": [0]}}},
            ", user v: is among users, but not in user_",
        ),
        ({"users": [], "user_data": {"u": {"x": [[1]], "y": [0]}}}, ", user u: is in user_data, but not among users"),
        ({"user_data": {"u": {"x": 3, "y": 3}}}, ", user u: has no lists x and y"),
        ({"user_data": {"u": {"x": [[1], [2]], "y": [0, None]}}}, ", user u: the label of example 1 is missing"),
        (
            {"user_data": {"u": {"x": [[1], [2]], "y": [0, float("nan")]}}},
            ", user u: the label of example 1 is missing",
        ),
        ({"users": None, "user_data": {}}, ": is not of LEAF, "),
        ([1, 2], ": is not of LEAF, "),
    ],
)
def test_what_is_not_of_leaf_is_refused_by_user(tmp_path: Path, about: object, why: str) -> None:
    (tmp_path / "t.json").write_text(json.dumps(about))
    with pytest.raises(DataError) as refused:
        data_of(tmp_path / "t.json")
    assert f"t.json{why}" in str(refused.value)


def test_half_a_character_of_leafs_texts_is_a_token(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text('{"user_data": {"u": {"x": ["a\\ud800", "b", "c"], "y": ["a", "a", "a"]}}}')
    data = data_of(tmp_path / "t.json")
    assert [97, 127] in [*data.train.x.tolist(), *data.test.x.tolist()]


def test_metadata_of_the_hub_that_is_damaged_is_refused(tmp_path: Path) -> None:
    made = hub_table(2, character=[0, 1])
    pq.write_table(made.replace_schema_metadata({"huggingface": "{"}), tmp_path / "t.parquet")
    with pytest.raises(DataError, match=r"t.parquet: cannot be read: "):
        data_of(tmp_path / "t.parquet", label="character")


def test_an_image_that_is_missing_in_the_first_row_is_named(tmp_path: Path) -> None:
    pq.write_table(pa.table({"label": [0, 1], "image": [None, b"GIF"]}), tmp_path / "t.parquet")
    with pytest.raises(DataError, match=r"t.parquet, row 0, column image: the image is missing"):
        data_of(tmp_path / "t.parquet")


def test_clients_in_folders_of_folders_stay_apart(tmp_path: Path) -> None:
    for name in ("north/ann", "north/bo", "south/ann"):
        table(tmp_path / "set" / name / "day.csv", [(place % 2, place) for place in range(5)], "label,x")
    assert by_client(data_of(tmp_path / "set")) == dict.fromkeys(("north/ann", "north/bo", "south/ann"), (4, 1))


def test_links_to_folders_are_followed_once_and_unread_files_are_noted(tmp_path: Path) -> None:
    rows = [(place % 2, place) for place in range(5)]
    table(tmp_path / "elsewhere" / "ann" / "day.csv", rows, "label,x")
    table(tmp_path / "set" / "cache-1.csv", rows, "label,x")
    (tmp_path / "set" / "ann").symlink_to(tmp_path / "elsewhere" / "ann")
    (tmp_path / "set" / "again").symlink_to(tmp_path / "set")
    (tmp_path / "set" / "bo.xlsx").write_text("")
    data = data_of(tmp_path / "set")
    assert by_client(data) == {"ann": (4, 1), "cache-1": (4, 1)}
    assert "set: files that are not read: 1 .xlsx" in data.notes


def test_names_of_tables_that_end_in_a_part_say_it(tmp_path: Path) -> None:
    for part, count in (("train", 6), ("test", 2)):
        table(tmp_path / "one" / f"mnist_{part}.csv", [(place % 2, place) for place in range(count)], "label,x")
        for client in ("ann", "bo"):
            table(tmp_path / "two" / f"{client}_{part}.csv", [(place % 2, place) for place in range(count)], "label,x")
    one = data_of(tmp_path / "one")
    assert (len(one.train.y), len(one.test.y), one.train.ids) == (6, 2, None)
    assert by_client(data_of(tmp_path / "two")) == {"ann": (6, 2), "bo": (6, 2)}
    for client in ("crash_test", "stress_test"):
        table(tmp_path / "tests" / f"{client}.csv", [(place % 2, place) for place in range(5)], "label,x")
    assert by_client(data_of(tmp_path / "tests")) == {"crash_test": (4, 1), "stress_test": (4, 1)}


def test_images_at_two_depths_are_refused(tmp_path: Path) -> None:
    for name in ("cat/0.png", "dog/0.png", "dog/brown/1.png"):
        image(tmp_path / "photos" / name, 9)
    both = r"dog/brown/1.png: is in a folder of a client and a class, .*cat/0.png in one of a class alone"
    with pytest.raises(DataError, match=both):
        data_of(tmp_path / "photos")
    with pytest.raises(DataError, match=r"cat/0.png: is a single image; give the folder whose folders are the classes"):
        data_of(tmp_path / "photos" / "cat" / "0.png")


def test_pipes_are_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.csv")
    for path in (tmp_path / "pipe.csv", tmp_path):
        with pytest.raises(DataError, match=r"pipe.csv: is a device, a pipe or a folder, not a file"):
            data_of(path)


def test_too_few_examples_for_a_test_set_are_refused_with_the_reason(tmp_path: Path) -> None:
    file = csv_of(tmp_path / "t.csv", "label,x", ["1.5,1", "2.5,2", "3.5,3"])
    why = r"t.csv: test = 0.2: none of 3 examples of 3 classes is left for the test set, since each class keeps one"
    with pytest.raises(DataError, match=why):
        data_of(file)


def test_a_table_is_read_again_when_an_image_that_it_names_has_changed(tmp_path: Path) -> None:
    rows = []
    for number in range(5):
        image(tmp_path / "images" / f"{number}.png", number)
        rows.append((f"images/{number}.png", 0))
    file, cache = table(tmp_path / "t.csv", rows, "path,label"), tmp_path / "cache"
    first = kept(file, FileReading(), cache)
    assert kept(file, FileReading(), cache) == first
    image(tmp_path / "images" / "3.png", 99)
    assert kept(file, FileReading(), cache) != first
