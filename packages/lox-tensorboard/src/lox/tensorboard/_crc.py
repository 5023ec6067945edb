"""CRC-32C, the checksum of TensorBoard's records, over many records at once.

A CRC is linear: flipping a bit of the message flips a fixed set of bits of the checksum, which depends only on how
far the bit is from the end. So the checksum of a message is the xor of one table entry for each of its bytes, and
numpy can look up all bytes of all records at once. If most bytes of a record never change, only the others have to be
looked up.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint32]

_POLYNOMIAL = 0x82F63B78  # bits reversed, as in every CRC-32C
_CHUNK = 1024
_ONES = 0xFFFFFFFF


def tables(distances: npt.NDArray[np.intp]) -> Words:
    """One table for each distance from the end of a message: `tables[i, byte]` is what that byte adds to the CRC."""
    bits = _bit_contributions(int(distances.max(initial=0)) + 1)[distances]
    result = np.zeros((len(distances), 256), np.uint32)
    for bit in range(8):
        result[:, 1 << bit : 2 << bit] = result[:, : 1 << bit] ^ bits[:, bit, None]
    return result


def xor_of(table: Words, data: Bytes) -> Words:
    """What the bytes of each row of `data` add to its CRC, with one table for each column."""
    entries = table.reshape(-1)[np.arange(0, table.size, 256) + data]
    result: Words = np.bitwise_xor.reduce(entries, axis=1)
    return result


def crc32c(data: bytes) -> int:
    """The checksum of one message, of four bytes or more."""
    # Padding with zeros in front changes nothing, because the register starts as zero. A CRC-32C register should start as
    # all ones, which is the same as inverting the first four bytes.
    padding = -len(data) % _CHUNK
    padded = np.zeros(padding + len(data), np.uint8)
    padded[padding:] = np.frombuffer(data, np.uint8)
    padded[padding : padding + 4] ^= 0xFF
    table, first, second, third, fourth = _chunk_tables()
    register = 0
    for part in xor_of(table, padded.reshape(-1, _CHUNK)).tolist():
        # A register followed by a chunk of zeros counts like four bytes at the start of the chunk.
        register = (
            part
            ^ first[register & 0xFF]
            ^ second[register >> 8 & 0xFF]
            ^ third[register >> 16 & 0xFF]
            ^ fourth[register >> 24]
        )
    return register ^ _ONES


def masked(crc: Words) -> Words:
    """The masked form in which records store a checksum, so that a CRC of data that contains CRCs works."""
    return (crc >> np.uint32(15) | crc << np.uint32(17)) + np.uint32(0xA282EAD8)


@lru_cache(maxsize=1)
def _chunk_tables() -> tuple[Words, list[int], list[int], list[int], list[int]]:
    table = tables(np.arange(_CHUNK - 1, -1, -1))
    first, second, third, fourth = (row.tolist() for row in table[:4])
    return table, first, second, third, fourth


@lru_cache(maxsize=4)
def _bit_contributions_up_to(size: int) -> Words:
    """`[distance, bit]`: what a single set bit adds to the CRC. Each value is the previous one, shifted by one bit."""
    register, sequence = _POLYNOMIAL, []
    for _ in range(8 * size):
        sequence.append(register)
        register = register >> 1 ^ (_POLYNOMIAL if register & 1 else 0)
    # The lowest bit of a byte enters the register first, so it is shifted the most.
    return np.array(sequence, np.uint32).reshape(size, 8)[:, ::-1]


def _bit_contributions(size: int) -> Words:
    # Sizes are rounded up to powers of two, so that growing messages seldom need new tables.
    return _bit_contributions_up_to(max(_CHUNK, 1 << (size - 1).bit_length()))
