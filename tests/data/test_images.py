"""Any image becomes pixels; what is none says so; folders, tables, Parquet and idx files become a data directory."""

import gzip
import io
import json
import struct
import zlib

import numpy as np
import pytest
from PIL import Image, ImageDraw

import toy
from regard.data.image_readers import read_idx
from regard.data.images import MOST_PIXELS, read_pixels
from regard.data.prepare import prepare
from regard.data.readers import File
from regard.data.store import DataDir
from regard.data.summary import Summary
from regard.recipe import Data, Files, Images
from regard.schema import InputError

SIZE = 7


def encoded(image, format="PNG", **options):
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def some(mode="RGB", size=(13, 11), seed=1):
    draw = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), np.uint8)
    return Image.fromarray(draw).convert(mode)


# ---------------------------------------------------------------------------------------
# Reading


def test_the_short_side_is_resized_by_pillows_antialiased_bicubic_and_the_middle_cut_out():
    image = some(size=(51, 17))
    middle = image.resize((3 * SIZE, SIZE), Image.Resampling.BICUBIC).crop((SIZE, 0, 2 * SIZE, SIZE))
    assert np.abs(read_pixels(image, SIZE, 3).astype(int) - np.asarray(middle)).max() <= 1


def test_an_image_of_the_right_size_stays_as_it_is():
    image = some(size=(SIZE, SIZE))
    assert (read_pixels(encoded(image), SIZE, 3) == np.asarray(image)).all()
    assert (read_pixels(np.asarray(image), SIZE, 3) == np.asarray(image)).all()


@pytest.mark.parametrize(
    "image",
    [
        pytest.param(encoded(Image.new("L", (9, 9), 100)), id="grey"),
        pytest.param(encoded(Image.new("1", (9, 9), 1)), id="two colours"),
        pytest.param(encoded(Image.new("CMYK", (9, 9), (0, 255, 255, 0)), "JPEG", quality=95), id="cmyk"),
        pytest.param(encoded(Image.new("RGBA", (9, 9), (200, 0, 0, 255))), id="rgba"),
        pytest.param(encoded(some("P")), id="palette"),
        pytest.param(encoded(Image.fromarray(np.full((9, 9), 40_000, np.uint16))), id="16 bits"),
        pytest.param(
            encoded(Image.new("RGB", (9, 9), "red"), "GIF", save_all=True, append_images=[Image.new("RGB", (9, 9), "blue")]),
            id="animated",
        ),
        pytest.param(encoded(Image.new("LA", (9, 9), (100, 255))), id="grey with alpha"),
    ],
)  # fmt: skip
def test_all_kinds_are_converted(image):
    assert read_pixels(image, SIZE, 3).shape == (SIZE, SIZE, 3)
    assert read_pixels(image, SIZE, 1).shape == (SIZE, SIZE, 1)


def test_what_they_are_converted_to():
    def at(image, channels=3):
        return read_pixels(image, SIZE, channels)[3, 3].tolist()

    assert at(encoded(Image.new("L", (9, 9), 100))) == [100] * 3
    assert at(encoded(Image.new("RGBA", (9, 9), (0, 0, 0, 0)))) == [255] * 3  # over white
    assert at(encoded(Image.new("RGBA", (9, 9), (0, 0, 0, 51)))) == [204] * 3
    assert at(encoded(Image.fromarray(np.full((9, 9), 40_000, np.uint16))), 1) == [round(40_000 / 257)]
    assert at(encoded(Image.new("RGB", (9, 9), "red"), "GIF", save_all=True, append_images=[Image.new("RGB", (9, 9))])) == [255, 0, 0]  # fmt: skip
    red, green, blue = at(encoded(Image.new("CMYK", (9, 9), (0, 255, 255, 0)), "JPEG", quality=95))
    assert red > 240
    assert max(green, blue) < 15


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_says_which_side_is_up(orientation):
    upright = Image.new("L", (8, 8))
    ImageDraw.Draw(upright).rectangle((0, 0, 3, 7), 80)
    ImageDraw.Draw(upright).rectangle((0, 0, 7, 3), 255)
    # What a camera that is held so stores: the other way round than it is shown.
    undo = {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}
    stored = upright if orientation == 1 else upright.transpose(Image.Transpose(undo[orientation]))
    exif = Image.Exif()
    exif[0x0112] = orientation
    assert (read_pixels(encoded(stored, exif=exif), 8, 1)[..., 0] == np.asarray(upright)).all()


def test_a_large_jpeg_is_decoded_small_and_looks_the_same():
    draw = np.random.default_rng(3).integers(0, 256, (9, 9, 3), np.uint8)
    image = Image.fromarray(draw).resize((900, 900), Image.Resampling.BICUBIC)
    whole = image.resize((31, 31), Image.Resampling.BICUBIC)
    read = read_pixels(encoded(image, "JPEG", quality=95), 31, 3)
    assert np.abs(read.astype(int) - np.asarray(whole)).mean() < 3


def bomb(width, height):
    """A PNG that claims to be large, and has hardly a byte."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (b"a dog", "is not an image, or of a kind that pillow cannot read"),
        (b"", "is not an image, or of a kind that pillow cannot read"),
        (encoded(some(size=(97, 89)))[:3_000], "is damaged or cut short (image file is truncated); fetch the image again"),
        (bomb(40_000, 40_000), f"claims far more than the {MOST_PIXELS:,} pixels that are read; make it smaller"),
        (bomb(8_009, 8_009), "has 8,009 x 8,009 pixels, and more than 64,000,000 are refused; make it smaller"),
        (encoded(Image.fromarray(np.ones((9, 9), np.float32)), "TIFF"), "has pixels that are fractions; give whole numbers of 8 or 16 bits"),
    ],
)  # fmt: skip
def test_what_is_no_image_is_named(image, message):
    with pytest.raises(InputError) as error:
        read_pixels(image, SIZE, 3, "photo.png")
    assert str(error.value) == f"photo.png: {message}"


@pytest.mark.parametrize(
    ("image", "message"),
    [
        ("nowhere.jpg", "nowhere.jpg: no such image"),
        (".", ".: is no file"),
        (7, "image (int) must be a path, bytes, an image of pillow or an array"),
        (np.zeros((5, 5)), "image: an array of shape (5, 5) and type float64 must be uint8, (H, W) or (H, W, 3)"),
        (np.zeros((0, 5), np.uint8), "image: an array of shape (0, 5) has no pixels"),
    ],
)
def test_what_cannot_be_opened_is_refused(image, message):
    with pytest.raises(InputError) as error:
        read_pixels(image, SIZE, 3)
    assert str(error.value) == message


# ---------------------------------------------------------------------------------------
# Preparing


def data_of(files, **changes):
    images = Images(**{"size": 15, **changes.pop("images", {})})
    return Data(task="classify", train=Files(files=(str(files),)), images=images, **changes)


@pytest.fixture
def folder(tmp_path):
    return toy.images(tmp_path / "photos", 31, 1)


def pixels_of(folder):
    return {path.name: np.asarray(Image.open(path)) for path in folder.rglob("*.png")}


def test_a_folder_for_each_label(folder, tmp_path):
    (folder / "above" / "notes.txt").write_text("not an image, and not called like one")
    (folder / ".thumbnails").mkdir()
    data = prepare(data_of(folder), tmp_path / "data")
    columns = data.split("train")
    assert data.labels == ["above", "below", "nowhere"]
    assert columns["image"].shape == (31, 15, 15, 3)
    assert isinstance(columns["image"], np.memmap)
    assert np.bincount(columns["label"]).tolist() == [11, 10, 10]
    expected = pixels_of(folder)
    found = {
        image.tobytes(): data.labels[label] for image, label in zip(columns["image"], columns["label"], strict=True)
    }
    for path in folder.rglob("*.png"):
        assert found[expected[path.name].tobytes()] == path.parent.name
    data.verify()


def test_mean_and_deviation_are_those_of_the_training_images(folder, tmp_path):
    told = prepare(data_of(folder, hold_out=0.2), tmp_path / "data").manifest["images"]
    pixels = DataDir(tmp_path / "data").split("train")["image"] / 255
    assert told["mean"] == pytest.approx(pixels.mean((0, 1, 2)).tolist(), abs=1e-6)
    assert told["std"] == pytest.approx(pixels.std((0, 1, 2)).tolist(), abs=1e-6)


def test_what_is_held_out_has_every_label(folder, tmp_path):
    data = prepare(data_of(folder, hold_out=0.2), tmp_path / "data")
    assert np.bincount(data.split("valid")["label"]).tolist() == [2, 2, 2]
    assert len(data.split("train")["label"]) == 25


def table(folder, path, rows, **columns):
    """A file that names the images of a folder."""
    lines = [(str(p.relative_to(path.parent)), p.parent.name) for p in sorted(folder.rglob("*.png"))]
    path.write_text("".join(rows(*line) + "\n" for line in lines))


@pytest.mark.parametrize("kind", ["tsv", "csv", "jsonl"])
def test_a_table_of_paths(folder, tmp_path, kind):
    rows = {
        "tsv": lambda path, label: f"{path}\t{label}",
        "csv": lambda path, label: f'"{path}",{label}',
        "jsonl": lambda path, label: json.dumps({"file": path, "label": label, "more": 7}),
    }[kind]
    table(folder, tmp_path / f"list.{kind}", rows)
    data = prepare(data_of(tmp_path / f"list.{kind}"), tmp_path / "data")
    whole = prepare(data_of(folder), tmp_path / "whole")
    assert sorted(data.split("train")["image"].reshape(31, -1).tolist()) == sorted(whole.split("train")["image"].reshape(31, -1).tolist())  # fmt: skip
    assert data.labels == whole.labels


def test_a_table_with_a_header_and_numbers_that_have_names(folder, tmp_path):
    number = {"above": 0, "below": 1, "nowhere": 2}
    table(folder, tmp_path / "list.csv", lambda path, label: f"{number[label]},{path}")
    (tmp_path / "list.csv").write_text("label,photo\n" + (tmp_path / "list.csv").read_text())
    how = {"columns": ("photo", "label"), "images": {"names": ("up", "down", "none")}}
    data = prepare(data_of(tmp_path / "list.csv", **how), tmp_path / "data")
    assert data.labels == ["down", "none", "up"]


@pytest.mark.parametrize("kind", ["bytes", "struct", "path"])
def test_parquet_with_the_bytes_of_images(folder, tmp_path, kind):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    paths = sorted(folder.rglob("*.png"))
    names = ["above", "below", "nowhere"]
    images = {
        "bytes": [path.read_bytes() for path in paths],
        "struct": [{"bytes": path.read_bytes(), "path": path.name} for path in paths],
        "path": [{"bytes": None, "path": str(path.relative_to(tmp_path))} for path in paths],
    }[kind]
    made = arrow.table({"image": images, "label": [names.index(path.parent.name) for path in paths]})
    told = {"info": {"features": {"label": {"names": names, "_type": "ClassLabel"}}}}
    parquet.write_table(made.replace_schema_metadata({"huggingface": json.dumps(told)}), tmp_path / "a.parquet")
    data = prepare(data_of(tmp_path / "a.parquet"), tmp_path / "data")
    assert data.labels == names
    for image, label, path in zip(*data.split("train").values(), paths, strict=True):
        assert (image == np.asarray(Image.open(path))).all()
        assert names[label] == path.parent.name


def test_labels_that_were_changed_are_noticed(tmp_path):
    """Beside the images, in a file of their own."""
    for name, values in (("images-idx3", np.zeros((3, 5, 5), np.uint8)), ("labels-idx1", np.arange(3, dtype=np.uint8))):
        write_idx(tmp_path / f"train-{name}-ubyte", values)
    how = {"size": 5, "channels": 1}
    data = prepare(data_of(tmp_path / "train-images-idx3-ubyte", images=how), tmp_path / "data")
    assert data.changed_input() is None
    write_idx(tmp_path / "train-labels-idx1-ubyte", np.arange(3, dtype=np.uint8)[::-1].copy())
    assert data.changed_input() == str(tmp_path / "train-labels-idx1-ubyte")


def write_idx(path, values, packed=False):
    header = bytes([0, 0, 8, values.ndim]) + b"".join(n.to_bytes(4, "big") for n in values.shape)
    path.write_bytes((gzip.compress if packed else bytes)(header + values.tobytes()))


@pytest.mark.parametrize("packed", [False, True])
def test_idx_files(tmp_path, packed):
    draw = np.random.default_rng(1)
    images, labels = draw.integers(0, 256, (17, 5, 5), np.uint8), np.arange(17, dtype=np.uint8) % 3
    end = ".gz" if packed else ""
    write_idx(tmp_path / f"train-images-idx3-ubyte{end}", images, packed)
    write_idx(tmp_path / f"train-labels-idx1-ubyte{end}", labels, packed)
    how = {"size": 5, "channels": 1, "names": ("a", "b", "c")}
    data = prepare(data_of(tmp_path / f"train-images-idx3-ubyte{end}", images=how), tmp_path / "data")
    assert (data.split("train")["image"][..., 0] == images).all()
    assert (data.split("train")["label"] == labels).all()
    assert data.labels == ["a", "b", "c"]


def test_several_captions_of_an_image_are_several_rows(folder, tmp_path):
    from regard.data.image_readers import find_albums

    one, other, *_ = sorted(folder.rglob("*.png"))
    lines = [{"image": str(one), "captions": ["a", "b"]}, {"image": str(other), "captions": "c"}]
    (tmp_path / "captions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    [album] = find_albums([str(tmp_path / "captions.jsonl")])
    found = [(picture.name, text) for _, (picture, text) in album.rows(("image", "captions"))]
    assert found == [(str(one), "a"), (str(one), "b"), (str(other), "c")]


# ---------------------------------------------------------------------------------------
# What is broken


def test_broken_images_are_counted_named_and_left_out(folder, tmp_path):
    (folder / "above" / "x.jpg").write_bytes(b"a dog")
    data = prepare(data_of(folder, images={"max_broken": 0.05}), tmp_path / "data")
    facts = data.manifest["splits"]["train"]
    assert facts["examples"] == 31
    assert facts["dropped"]["broken"] == 1
    assert facts["broken"] == [f"{folder}/above/x.jpg: is not an image, or of a kind that pillow cannot read"]
    assert Summary(data).to_dict()["splits"]["train"]["broken"] == facts["broken"]


def test_too_many_broken_images_are_an_error_and_nothing_is_written(folder, tmp_path):
    for i in range(7):
        (folder / "below" / f"x{i}.png").write_bytes(encoded(some(size=(97, 89)))[:999])
    with pytest.raises(InputError) as error:
        prepare(data_of(folder), tmp_path / "data")
    first, *others = str(error.value).split("; fetch the image again; ")
    assert first == (
        "train: 7 of 38 images cannot be read, more than max_broken (0.01) of them:"
        f" {folder}/below/x0.png: is damaged or cut short (image file is truncated)"
    )
    assert len(others) == 4
    assert sorted(path.name for path in tmp_path.iterdir()) == ["photos"]


def wrong(folder, case):
    """A mistake in some files, and the line that tells of it."""
    one = next(folder.rglob("*.png"))
    match case:
        case "no labels":
            (folder / "empty").mkdir()
            return (
                folder / "empty",
                f"{folder}/empty: has no folders; images lie in a folder for each label: {folder}/empty/dog/1.jpg",
            )
        case "a label without images":
            (folder / "sideways").mkdir()
            (folder / "sideways" / "readme.txt").touch()
            return (
                folder,
                f"{folder}/sideways: has no images; remove the folder, or put some there (.jpg, .jpeg, .png, .gif, .bmp, .webp, .tif, .tiff, .ppm, .pgm, .pbm, .jp2, .avif)",
            )
        case "an image without a label":
            one.rename(folder / "stray.png")
            return folder, f"{folder}/stray.png: lies in no folder of a label; put it into {folder}/LABEL/"
        case "a missing image":
            file = folder / "list.tsv"
            file.write_text(f"{one}\tdog\nnowhere.jpg\tdog\n")
            return file, f"{file}: line 2: names an image that is not there, {folder}/nowhere.jpg"
        case "a header":
            file = folder / "list.csv"
            file.write_text(f"path,label\n{one},dog\n")
            return (
                file,
                f"{file}: line 1: names an image that is not there, {folder}/path; is this a header? name the columns",
            )
        case "a missing label":
            file = folder / "list.tsv"
            file.write_text(f"{one}\t \n")
            return file, f"{file}: line 1: the label is missing"
        case "text":
            file = folder / "list.txt"
            file.write_text("dog.jpg")
            return (
                file,
                f"{file}: is no folder, table or idx file of images; known: folders with a folder for each label, .tsv, .csv, .jsonl, .ndjson, .parquet, and MNIST's train-images-idx3-ubyte",
            )
        case "idx without labels":
            file = folder / "a-images-idx3-ubyte"
            file.touch()
            return file, f"{folder}/a-labels-idx1-ubyte: no such file; the labels of {file} belong there"
        case "idx of another number":
            file, other = folder / "a-images-idx3-ubyte", folder / "a-labels-idx1-ubyte"
            write_idx(file, np.zeros((5, 3, 3), np.uint8))
            write_idx(other, np.zeros(7, np.uint8))
            return file, f"{file} has 5 images and {other} 7 labels: both need as many"
        case "idx cut short":
            file, other = folder / "a-images-idx3-ubyte", folder / "a-labels-idx1-ubyte"
            write_idx(other, np.zeros(5, np.uint8))
            file.write_bytes(bytes([0, 0, 8, 3, 0, 0, 0, 5, 0, 0, 0, 3, 0, 0, 0, 3, 1]))
            return file, f"{file}: has 1 values, and its header says 45; fetch it again"


CASES = ["no labels", "a label without images", "an image without a label", "a missing image", "a header", "a missing label",
         "text", "idx without labels", "idx of another number", "idx cut short"]  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_is_wrong_is_told_in_one_line(folder, tmp_path, case):
    files, message = wrong(folder, case)
    with pytest.raises(InputError) as error:
        prepare(data_of(files), tmp_path / "data")
    assert str(error.value) == message
    assert not (tmp_path / "data").exists()


def test_idx_files_of_something_else_are_refused(tmp_path):
    (tmp_path / "a").write_bytes(b"PNG")
    with pytest.raises(InputError, match="is no idx file, which begins with two zeros"):
        read_idx(File(tmp_path / "a"))
    (tmp_path / "a").write_bytes(bytes([0, 0, 13, 1, 0, 0, 0, 0]))
    with pytest.raises(InputError, match=r"idx files of bytes are read \(kind 8\), not of kind 13"):
        read_idx(File(tmp_path / "a"))


def test_the_summary_has_a_row_for_each_label(folder, tmp_path):
    from rich.console import Console

    console = Console(file=io.StringIO(), width=100)
    console.print(Summary(prepare(data_of(folder, hold_out=0.2), tmp_path / "data")))
    text = console.file.getvalue()
    assert "nowhere" in text
    assert "15 x 15 pixels, red, green, blue" in text
