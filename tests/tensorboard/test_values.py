"""Values of every kind, read back by TensorBoard."""

from __future__ import annotations

import io
import math
import wave

import ml_dtypes
import numpy as np
import pytest
from PIL import Image

from lox.loggers.kinds import KindError
from tests.tensorboard.reading import join, modern_events, read, scalars, table, value_events


def one(data, **steps):
    """A single record."""
    return table({key: np.asarray(value)[None] for key, value in data.items()}, step=[0])


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (True, 1.0),
        (np.int8(-3), -3.0),
        (np.uint32(2**24), 2.0**24),
        (np.float16(0.5), 0.5),
        (ml_dtypes.bfloat16(1.5), 1.5),
        (np.float64(0.1), float(np.float32(0.1))),
        (np.inf, np.inf),
        (-np.inf, -np.inf),
        (np.float64(1e300), np.inf),  # beyond float32, as TensorBoard's own writer does it
    ],
)
def test_numbers_of_every_type_are_scalars(write, value, expected):
    assert scalars(write(one({"x": value}))) == {"x": [(0, expected)]}


def test_nan_is_nan(write):
    ((_, value),) = scalars(write(one({"x": np.nan})))["x"]
    assert math.isnan(value)


def test_complex_numbers_are_two_curves(write):
    assert scalars(write(one({"z": 1 - 2j}))) == {"z/real": [(0, 1)], "z/imag": [(0, -2)]}


def test_nested_values_are_named_key_and_leaf(write):
    logs = table({"stats": {"mean": np.ones(2), "parts": [np.zeros(2), np.full(2, 3.0)]}}, step=[0, 1])
    assert scalars(write(logs)) == {
        "stats/mean": [(0, 1), (1, 1)],
        "stats/parts/0": [(0, 0), (1, 0)],
        "stats/parts/1": [(0, 3), (1, 3)],
    }


@pytest.mark.parametrize("tag", ["a b (c)", "/lead", "grün", "x" * 3000, "a:b,c=d%"])
def test_tags_stay_as_they_were_logged(write, tag):
    folder = write(one({tag: 1.0, f"{tag}/h": [1.0, 2.0]}))
    assert scalars(folder) == {tag: [(0, 1)]}
    assert read(folder).Tags()["histograms"] == [f"{tag}/h"]


@pytest.mark.parametrize("shape", [(10,), (2, 5), (1, 1, 10)])
def test_arrays_are_histograms(write, shape):
    values = np.arange(10.0).reshape(shape)
    folder = write(table({"w": np.stack([values, values + 100])}, step=[3, 4]))
    first, second = read(folder).Histograms("w")
    assert (first.step, second.step) == (3, 4)
    histogram = first.histogram_value
    assert (histogram.min, histogram.max, histogram.num, histogram.sum) == (0, 9, 10, 45)
    assert sum(histogram.bucket) == 10
    assert second.histogram_value.min == 100


@pytest.mark.parametrize("dtype", [bool, np.int32, np.uint8, np.float16, ml_dtypes.bfloat16])
def test_histograms_of_every_type(write, dtype):
    folder = write(one({"w": np.array([0, 1, 1, 0, 1]).astype(dtype)}))
    assert read(folder).Histograms("w")[0].histogram_value.sum == 3


def test_complex_arrays_are_two_histograms(write):
    folder = write(one({"w": np.array([1 + 5j, 2 + 6j])}))
    assert read(folder).Histograms("w/imag")[0].histogram_value.min == 5


def test_nan_and_inf_in_arrays_are_counted(write):
    values = np.array([[1.0, 2.0, 3.0], [1.0, np.nan, np.inf], [np.nan, np.nan, np.nan]])
    folder = write(table({"w": values}, step=[0, 1, 2]))
    shown = [(event.step, event.histogram_value.num) for event in read(folder).Histograms("w")]
    assert shown == [(0, 3), (1, 1)]
    assert scalars(folder) == {"w/nonfinite": [(1, 2), (2, 3)]}


def test_an_empty_array_is_an_error_that_names_it(write):
    with pytest.raises(KindError, match=r"'w/x' has shape \(0,\): a histogram needs at least one number"):
        write(table({"w": {"x": np.zeros((2, 0))}}, step=[0, 1]))


def test_a_number_can_be_a_histogram_and_an_array_scalars(write):
    folder = write(one({"a": 2.0, "b": [3.0, 4.0]}), kinds={"a": "histogram", "b": "scalar"})
    assert read(folder).Histograms("a")[0].histogram_value.sum == 2
    assert scalars(folder) == {"b/0": [(0, 3)], "b/1": [(0, 4)]}


def pixels_of(event):
    return np.asarray(Image.open(io.BytesIO(event.encoded_image_string)))


@pytest.mark.parametrize("channels", [3, 4])
def test_images_keep_every_pixel(write, channels):
    images = np.random.default_rng(0).integers(0, 256, (2, 5, 7, channels), np.uint8)
    folder = write(table({"eval": {"image": images}}, step=[10, 20]), kinds={"*/image": "image"})
    first, second = read(folder).Images("eval/image")
    assert (first.step, second.step, first.height, first.width) == (10, 20, 5, 7)
    np.testing.assert_array_equal(pixels_of(first), images[0])
    np.testing.assert_array_equal(pixels_of(second), images[1])


@pytest.mark.parametrize(
    ("value", "grey"),
    [
        (np.array([[0.0, 0.2], [1.0, np.nan]]), [[0, 51], [255, 0]]),
        (np.array([[True, False]]), [[255, 0]]),
        (np.array([[0, 255, 7]], np.int32), [[0, 255, 7]]),
        (np.array([[[0.0], [1.0]]], ml_dtypes.bfloat16), [[0, 255]]),
    ],
)
def test_pixels_from_every_type(write, value, grey):
    folder = write(one({"image": value}), kinds={"image": "image"})
    (event,) = read(folder).Images("image")
    np.testing.assert_array_equal(pixels_of(event)[..., 0], grey)


def test_several_images_are_one_grid(write):
    folder = write(one({"image": np.zeros((4, 6, 5, 3), np.uint8)}), kinds={"image": "image"})
    (event,) = read(folder).Images("image")
    assert event.width * event.height == 4 * 6 * 5


@pytest.mark.parametrize("shape", [(), (4,), (2, 2, 2), (0, 4), (1, 1, 1, 1, 3)])
def test_a_shape_that_is_no_image_is_an_error_that_names_it(write, shape):
    with pytest.raises(KindError, match="'cam' cannot be an image: a record has shape"):
        write(one({"cam": np.zeros(shape)}), kinds={"cam": "image"})


@pytest.mark.parametrize("value", [np.full((2, 2), 200.0), np.full((2, 2), -1.0), np.full((2, 2), 256)])
def test_pixels_out_of_range_are_an_error_at_the_first_record(write, value):
    with pytest.raises(KindError, match="the image 'cam' holds numbers from .* Pixels are floats from 0 to 1"):
        write(one({"cam": value}), kinds={"cam": "image"})


def test_text_from_strings_and_bytes(write):
    note = np.zeros(20, np.uint8)
    note[:6] = np.frombuffer(b"**hi**", np.uint8)
    folder = write(
        table({"note": np.stack([note, note]), "said": np.array(["one", "grün"])}, step=[0, 1]), kinds={"note": "text"}
    )
    accumulator = read(folder)
    assert [event.tensor_proto.string_val[0] for event in accumulator.Tensors("note")] == [b"**hi**"] * 2
    assert accumulator.Tensors("said")[1].tensor_proto.string_val[0].decode() == "grün"
    assert accumulator.SummaryMetadata("note").plugin_data.plugin_name == "text"


@pytest.mark.parametrize("channels", [None, 1, 2])
def test_audio_is_a_wave_file(write, channels):
    frames = np.linspace(-1, 1, 100, dtype=np.float32)
    value = frames if channels is None else np.stack([frames] * channels, axis=1)
    folder = write(one({"clip": value}), kinds={"clip": "audio"}, sample_rate=8000)
    (event,) = read(folder).Audio("clip")
    assert (event.sample_rate, event.length_frames, event.content_type) == (8000, 100, "audio/wav")
    with wave.open(io.BytesIO(event.encoded_audio_string)) as sound:
        assert (sound.getframerate(), sound.getnchannels(), sound.getsampwidth()) == (8000, channels or 1, 2)
        samples = np.frombuffer(sound.readframes(100), "<i2").reshape(100, -1)[:, 0]
    np.testing.assert_allclose(samples / 32767, frames, atol=1 / 32767)


@pytest.mark.parametrize(
    "value", [np.zeros((3, 3)), np.zeros(()), np.zeros((2, 2, 2)), np.zeros(0), np.zeros(5, np.int64)]
)
def test_what_is_no_audio_is_an_error_that_names_it(write, value):
    with pytest.raises(KindError, match="'clip' cannot be audio: a record has"):
        write(one({"clip": value}), kinds={"clip": "audio"})


def test_a_step_with_values_of_all_kinds_is_one_event(write):
    data = {"loss": 1.0, "w": np.arange(3.0), "cam": np.zeros((2, 2)), "clip": np.zeros(9), "said": "x"}
    folder = write(one(data), kinds={"cam": "image", "clip": "audio"})
    (event,) = value_events(folder)
    assert [value.tag for value in event.summary.value] == list(data)
    plugins = [value.metadata.plugin_data.plugin_name for value in modern_events(folder)[1].summary.value]
    assert plugins == ["scalars", "histograms", "images", "audio", "text"]


def test_rows_with_and_without_an_image_keep_their_order(write):
    loss = table({"loss": np.arange(6.0)}, step=np.arange(6))
    images = table({"cam": np.zeros((2, 2, 2))}, step=[1, 4])
    folder = write(join(loss, images), kinds={"cam": "image"})
    events = value_events(folder)
    assert [event.step for event in events] == [0, 1, 2, 3, 4, 5]
    assert [len(event.summary.value) for event in events] == [1, 2, 1, 1, 2, 1]
    assert scalars(folder)["loss"] == [(step, step) for step in range(6)]


def test_skipped_keys_are_left_out(write):
    folder = write(one({"loss": 1.0, "debug/grad": np.zeros(0)}), kinds={"debug/*": "skip"})
    assert read(folder).Tags()["scalars"] == ["loss"]


def test_a_value_that_cannot_be_shown_leaves_the_file_whole(write, tmp_path):
    good, bad = one({"loss": 1.0}), one({"loss": 2.0, "w": np.zeros(0)})
    with pytest.raises(KindError):
        write(good, bad)
    assert scalars(tmp_path / "run") == {"loss": [(0, 1)]}


def test_kinds_that_tensorboard_lacks_are_an_error_before_anything_is_logged(write):
    with pytest.raises(KindError, match="TensorBoardLogger: .*'video' is not a kind that it can show"):
        write(kinds={"clip": "video"})
