"""Changes bytes at random, as a damaged disk does, or a person with an editor."""

from collections.abc import Sequence
from random import Random

NEAR_BYTES = 700  # of either end of a file, where it says what it is: more of the changes are made there
WORDS = [b"9", b"-", b'"', b"[", b"{", b"e9", b"null", b"NaN", b"-1", b"\n", b"\r\n", b"\0", b"\xff\xfe", b"\x85"]
WORDS += [b"[" * 5000, b"1" * 5000, b"\\ud800", bytes(8), b"\xff" * 8, (1 << 40).to_bytes(8, "little")]


def spoilt(data: bytes, random: Random, words: Sequence[bytes] = WORDS, most: int = 3) -> bytes:
    """One to `most` changes: a bit is flipped; bytes are put in, replaced, dropped or repeated; the rest is cut off."""
    for _ in range(random.choice([1, 1, 1, *range(2, most + 1)])):
        if not data:
            return random.choice(words)
        near = min(len(data), NEAR_BYTES)
        places = [random.randrange(len(data)), random.randrange(near), len(data) - 1 - random.randrange(near)]
        at, length = random.choice(places), random.choice([1, 1, 2, 8, 40])
        before, piece, after = data[:at], data[at : at + length], data[at + length :]
        how = random.randrange(9)
        if how < 3:
            data = before + bytes([piece[0] ^ 1 << random.randrange(8)]) + data[at + 1 :]
        elif how < 7:
            word = random.choice([*words, random.randbytes(length)])
            data = [before + word + data[at:], before + word + data[at + len(word) :], before + after][how % 3]
        elif how == 7:
            data = before + piece * random.choice([2, 3]) + after
        else:
            data = before or data[:1]
    return data
