"""Event files of any origin, read back."""

from __future__ import annotations

import importlib.util
import struct
import subprocess
import sys
import textwrap

import jax
import numpy as np
import pytest
import tensorboardX
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.proto.summary_pb2 import Summary, SummaryMetadata

from lox.loggers import RunFormatError, load
from lox.tensorboard import TensorBoardLogger
from lox.tensorboard._events import record
from lox.tensorboard._reading import read_checked


def write(folder, *events, name="events.out.tfevents.1.host"):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(b"".join(record(event) for event in (Event(wall_time=100.0), *events)))
    return folder / name


def scalar(tag, step, value, wall_time=100.0):
    return Event(wall_time=wall_time, step=step, summary=Summary(value=[Summary.Value(tag=tag, simple_value=value)]))


def test_tensorboardx(tmp_path):
    with tensorboardX.SummaryWriter(str(tmp_path / "runs" / "a")) as writer:
        for step in range(3):
            writer.add_scalar("train/loss", 1.5 * step, 10 * step, walltime=1000.0 + step)
            writer.add_histogram("weights", np.array([0.0, 1.0, 2.0, 5.0]) + step, 10 * step, walltime=1000.0 + step)
        writer.add_text("note", "hello", 1)
        writer.add_image("picture", np.zeros((3, 4, 4)), 1)
    runs = load(tmp_path)
    logs = runs["runs/a"]
    assert logs["train/loss"].tolist() == [0.0, 1.5, 3.0]
    assert logs.step["train/loss"].tolist() == [0, 10, 20]
    assert logs.time["train/loss"].tolist() == [0.0, 1.0, 2.0]
    assert logs["weights"]["mean"].tolist() == [2.0, 3.0, 4.0]
    assert logs["weights"]["max"].tolist() == [5.0, 6.0, 7.0]
    assert logs["note/text_summary"].tolist() == ["hello"]
    assert runs.left_out["runs/a"] == {"picture": "image"}
    assert load(tmp_path / "runs" / "a")["train/loss"].tolist() == [0.0, 1.5, 3.0]
    (file,) = (tmp_path / "runs" / "a").iterdir()
    assert load(file, keys="train/*").keys() == {"train/loss"}


@pytest.mark.skipif(importlib.util.find_spec("clu") is None, reason="clu is not installed: hatch run readers:test")
def test_clu(tmp_path):
    """In a process of its own: it brings TensorFlow along."""
    program = f"""
        from clu import metric_writers
        writer = metric_writers.SummaryWriter({str(tmp_path)!r})
        for step in range(3):
            writer.write_scalars(step, {{"loss": 1.0 / (step + 1)}})
        writer.write_hparams({{"rate": 0.01, "name": "adam"}})
        writer.write_histograms(2, {{"w": __import__("numpy").arange(10.0)}}, num_buckets={{"w": 5}})
        writer.close()
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=300)
    if "No module named 'tensorflow'" in done.stderr:
        pytest.skip("clu writes summaries with TensorFlow, which is not installed")
    assert done.returncode == 0, done.stderr
    logs = load(tmp_path)
    logs = logs if "loss" in logs else next(iter(logs.values()))
    assert logs["loss"].tolist() == pytest.approx([1.0, 1 / 2, 1 / 3])
    assert logs.step["loss"].tolist() == [0, 1, 2]
    assert logs["w"]["mean"].item() == pytest.approx(4.5, abs=0.5)


@pytest.mark.skipif(
    importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed: hatch run readers:test"
)
def test_tensorflow(tmp_path):
    program = f"""
        import tensorflow as tf
        from tensorboard.plugins.hparams import api as hp
        for part in ("train", "validation"):
            writer = tf.summary.create_file_writer({str(tmp_path)!r} + "/" + part)
            with writer.as_default():
                hp.hparams({{"rate": 0.25, "units": 8, "act": "relu"}})
                for step in range(4):
                    tf.summary.scalar("epoch_loss", 0.5 * step, step=step)
                    tf.summary.histogram("w", [1.0, 2.0, 3.0], step=step)
                tf.summary.text("note", "hello", step=0)
                tf.summary.image("picture", tf.zeros((1, 4, 4, 3)), step=0)
            writer.close()
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    runs = load(tmp_path)
    assert list(runs) == ["train", "validation"]
    logs = runs["train"]
    assert logs["epoch_loss"].tolist() == [0.0, 0.5, 1.0, 1.5]
    assert logs["w"]["count"].tolist() == [3.0] * 4
    assert logs["w"]["mean"].tolist() == pytest.approx([2.0] * 4, abs=0.1)
    assert runs.configs["train"] == {"rate": 0.25, "units": 8, "act": "relu", "note": "hello"}
    assert runs.left_out["train"] == {"picture": "images"}


def tensor(dtype, shape=(), **fields):
    value = Summary.Value(tag="x")
    value.tensor.dtype = dtype
    for size in shape:
        value.tensor.tensor_shape.dim.add(size=size)
    for name, content in fields.items():
        if isinstance(content, bytes):
            setattr(value.tensor, name, content)
        else:
            getattr(value.tensor, name).extend(content)
    return value


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (tensor(1, float_val=[1.5]), 1.5),
        (tensor(2, double_val=[1e300]), 1e300),
        (tensor(9, int64_val=[2**60 + 1]), 2**60 + 1),
        (tensor(10, bool_val=[True]), True),
        (tensor(19, half_val=[int(np.float16(0.5).view(np.uint16))]), 0.5),
        (tensor(14, half_val=[0x3FC0]), 1.5),
        (tensor(1, (3,), tensor_content=np.arange(3, dtype=np.float32).tobytes()), [0.0, 1.0, 2.0]),
        (tensor(3, (2, 2), int_val=[7]), [[7, 7], [7, 7]]),  # TensorFlow stores a run of equal numbers once
        (tensor(7, string_val=[b"text"]), "text"),
    ],
)
def test_the_tensors_of_tensorflow(tmp_path, value, expected):
    first = Summary.Value(
        tag="x", metadata=SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="scalars"))
    )
    first.MergeFrom(value)
    write(tmp_path, *(Event(step=step, summary=Summary(value=[each])) for step, each in enumerate([first, value])))
    logs = load(tmp_path)
    assert logs["x"].tolist() == [expected, expected]


def test_lox_with_everything(tmp_path):
    with TensorBoardLogger(tmp_path) as logger:
        state = logger.init(jax.random.key(0), {"rate": 0.1, "sizes": [1, 2], "none": None})
        logger.log(state, {"depth": 3})
        for step in range(3):
            logger.log(state, {"loss": 0.5 * step, "w": np.ones((2, 2)) * step}, step=step)
    runs = load(tmp_path)
    assert runs.configs["0000000000000000"] == {"rate": 0.1, "sizes": [1, 2], "none": None, "depth": 3}
    assert runs["0000000000000000"]["w"]["mean"].tolist() == [0.0, 1.0, 2.0]
    assert list(runs.where(rate=0.1)) == ["0000000000000000"]


def test_what_was_taken_back_is_not_read(tmp_path):
    for first, last in ((0, 5), (3, 7)):  # the second process goes on from step 3, since the first one died
        logger = TensorBoardLogger(tmp_path, if_exists="resume")
        state = logger.init(jax.random.key(0))
        for step in range(first, last):
            logger.log(state, {"loss": float(first)}, step=step)
        logger.flush()
        logger._killed = True
        for file in tmp_path.rglob("*tfevents*"):
            content = file.read_bytes()
        if first == 0:
            logger.close()
            file.write_bytes(content)  # without the end of the run
    logger.close()
    logs = load(tmp_path / "0000000000000000")
    assert logs.step["loss"].tolist() == list(range(7))
    assert logs["loss"].tolist() == [0.0] * 3 + [3.0] * 4


def test_a_file_cut_at_any_byte_has_its_first_records(tmp_path):
    file = write(tmp_path / "run", *(scalar("x", step, step) for step in range(4)))
    content = file.read_bytes()
    read = []
    for size in range(len(content) + 1):
        file.write_bytes(content[:size])
        read.append(len(list(read_checked(file))))
    assert read == sorted(read)
    assert (read[0], read[-1], read[-2]) == (0, 5, 4)


def test_a_bit_that_has_changed_anywhere_is_noticed(tmp_path):
    file = write(tmp_path / "run", *(scalar("x", step, step) for step in range(3)))
    content = bytearray(file.read_bytes())
    for place in range(len(content)):
        content[place] ^= 4
        file.write_bytes(content)
        with pytest.raises(RunFormatError, match="is damaged: the data at byte"):
            load(file)
        content[place] ^= 4


def test_long_records_are_checked_too(tmp_path):
    file = write(tmp_path / "run", scalar("x" * 10000, 1, 2.0))
    content = bytearray(file.read_bytes())
    assert len(load(file)) == 1
    content[-100] ^= 1
    file.write_bytes(content)
    with pytest.raises(RunFormatError, match="is damaged"):
        load(file)


@pytest.mark.parametrize("content", [b"garbage" * 100, struct.pack("<Q", 3) + b"\0" * 30, b"\xff" * 64])
def test_garbage(tmp_path, content):
    (tmp_path / "events.out.tfevents.1").write_bytes(content)
    with pytest.raises(RunFormatError, match="events.out.tfevents.1 is damaged"):
        load(tmp_path)


def test_a_record_that_is_no_event(tmp_path):
    from lox.tensorboard._events import frame

    (tmp_path / "events.out.tfevents.1").write_bytes(frame(b"\xff\xff\xff\xff\xff"))
    with pytest.raises(RunFormatError, match="is damaged"):
        load(tmp_path)


def test_the_reader_is_found_without_importing_tensorboardx(tmp_path):
    program = f"""
import lox.loggers, sys, jax
with lox.loggers.SaveLogger({str(tmp_path)!r}) as logger:
    logger.log(logger.init(jax.random.key(0)), {{"x": 1}}, step=0)
lox.loggers.load({str(tmp_path)!r})
found = {{"tensorboardX", "wandb", "pandas", "matplotlib"}} & set(sys.modules)
assert not found, found
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
