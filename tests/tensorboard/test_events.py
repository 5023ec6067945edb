"""The bytes of records, against tensorboardX's checksums and TensorBoard's reader."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
from tensorboardX.crc32c import crc32c as reference_crc32c
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.record_writer import masked_crc32c

from lox.tensorboard import _crc
from lox.tensorboard._events import record, scalar_records


@given(st.binary(min_size=4, max_size=3000))
def test_the_checksum_is_that_of_tensorboardx(data: bytes) -> None:
    assert _crc.crc32c(data) == reference_crc32c(data)


@pytest.mark.parametrize("size", [1023, 1024, 1025, 4096, 100_000])
def test_the_checksum_is_that_of_tensorboardx_at_the_edges_of_chunks(size: int) -> None:
    data = np.random.default_rng(size).bytes(size)
    assert _crc.crc32c(data) == reference_crc32c(data)


def test_a_record_is_framed_as_tensorboardx_frames_it() -> None:
    event = Event(wall_time=1.5, step=3, file_version="brain.Event:2")
    data = event.SerializeToString()
    length = struct.pack("<Q", len(data))
    expected = length + struct.pack("<I", masked_crc32c(length)) + data + struct.pack("<I", masked_crc32c(data))
    assert record(event) == expected


tags = st.lists(
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=200), min_size=1, max_size=6, unique=True
)
steps = st.integers(-(2**63), 2**63 - 1)
floats = st.floats(width=32)


@given(st.data(), tags, st.lists(steps, min_size=1, max_size=20))
def test_blocks_hold_what_was_put_in(data: st.DataObject, tags: list[str], steps: list[int]) -> None:
    shape = (len(steps), len(tags))
    row = st.lists(floats, min_size=len(tags), max_size=len(tags))
    values = np.array(data.draw(st.lists(row, min_size=len(steps), max_size=len(steps))), np.float32).reshape(shape)
    wall_times = np.linspace(1.7e9, 1.8e9, len(steps))
    records = scalar_records(tags, wall_times, np.array(steps), values)
    for line, wall_time, step, expected in zip(records, wall_times, steps, values, strict=True):
        content = line.tobytes()
        (length,) = struct.unpack_from("<Q", content)
        event = Event.FromString(content[12:-4])
        assert length == len(content) - 16
        assert struct.unpack_from("<I", content, 8) == (masked_crc32c(content[:8]),)
        assert struct.unpack("<I", content[-4:]) == (masked_crc32c(content[12:-4]),)
        assert (event.wall_time, event.step) == (wall_time, step)
        assert [value.tag for value in event.summary.value] == tags
        np.testing.assert_array_equal(np.float32([value.simple_value for value in event.summary.value]), expected)


def test_a_long_block_with_many_tags_is_read_by_tensorboard(tmp_path: Path) -> None:
    tags = [f"layer{i}/norm" for i in range(300)]
    values = np.random.default_rng(0).normal(size=(500, 300)).astype(np.float32)
    # Steps of one byte and of three in the same block.
    steps = np.arange(500) * 400
    path = tmp_path / "events.out.tfevents.0"
    header = record(Event(wall_time=1.0, file_version="brain.Event:2"))
    path.write_bytes(header + scalar_records(tags, np.arange(500.0), steps, values).tobytes())
    _, *events = LegacyEventFileLoader(str(path)).Load()
    assert [event.step for event in events] == steps.tolist()
    for event, row in zip(events, values, strict=True):
        assert [value.tag for value in event.summary.value] == tags
        assert [value.simple_value for value in event.summary.value] == row.tolist()


def test_the_reader_would_notice_a_wrong_checksum(tmp_path: Path) -> None:
    records = scalar_records(["loss"], np.ones(3), np.arange(3), np.ones((3, 1), np.float32))
    records[1, 20] ^= 1
    path = tmp_path / "events.out.tfevents.0"
    path.write_bytes(records.tobytes())
    assert len(list(LegacyEventFileLoader(str(path)).Load())) == 1
