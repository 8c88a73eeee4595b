"""Text files, plain or compressed: blocks of whole lines, none beyond the limit of memory."""

from __future__ import annotations

import bz2
import gzip
import lzma
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
from numpy.typing import NDArray

from sottovoce.errors import InputError
from sottovoce.files import LONGEST_LINE, check_plain

COMPRESSED: Final[dict[str, Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
BYTES = 1 << 23  # of lines that are read at once; fewer than a line may have
PART = 1 << 27  # bytes of a large file that are a source of their own
SPACES: Final = b" \t\r\n\x0b\x0c"  # a line of these alone is empty
TOO_LONG: Final = b'""\rx\n'  # in the place of a line beyond the limit: one that no format can read


def is_plain(path: Path) -> bool:
    """Whether a file is not compressed: then a part of it can be read without what is before."""
    return path.suffix.lower() not in COMPRESSED


def check_data(path: Path) -> None:
    """Raise unless there is a plain file."""
    try:
        check_plain(path)
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such file.") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}).") from None


@contextmanager
def open_data(path: Path) -> Iterator[IO[bytes]]:
    """The bytes of a file, decompressed by its suffix.

    What goes wrong while the block reads from it (not there, damaged, cut short) becomes an `InputError`.
    """
    check_data(path)
    try:
        with COMPRESSED.get(path.suffix.lower(), open)(path, "rb") as stream:
            yield stream
    except EOFError:
        raise InputError(
            f"{path} is cut short: the compressed data end too early. Copy or download it again."
        ) from None
    except (lzma.LZMAError, zlib.error, gzip.BadGzipFile):
        raise InputError(f"{path} is damaged, or not what its suffix says. Copy or download it again.") from None
    except OSError as error:
        # The text of an OSError can quote bytes of the file; its type and number cannot.
        raise InputError(
            f"{path} cannot be read ({type(error).__name__}). Is it damaged, or not yours to read?"
        ) from None


def read_blocks(stream: IO[bytes]) -> Iterator[bytes]:
    """Whole lines, some megabytes at once, from where the stream is; one beyond the limit is `TOO_LONG`."""
    while block := stream.read(BYTES):
        if not block.endswith(b"\n"):
            begun = len(block) - block.rfind(b"\n") - 1  # bytes of the last line
            block += stream.readline(LONGEST_LINE + 1 - begun) if begun <= LONGEST_LINE else b""
            start = block.rfind(b"\n", 0, -1) + 1
            if len(block) - start > LONGEST_LINE:
                rest = block[-1:]
                while rest and not rest.endswith(b"\n"):
                    rest = stream.readline(LONGEST_LINE)
                block = block[:start] + TOO_LONG
        yield block


def line_starts(text: bytes) -> NDArray[np.int64]:
    """Where each line begins, and where the last one ends."""
    ends = np.flatnonzero(np.frombuffer(text, np.uint8) == ord("\n")) + 1
    return np.concatenate([[0], ends if text.endswith(b"\n") else np.append(ends, len(text))])


def count_lines(text: bytes) -> int:
    """How many lines there are; the last need not end."""
    return text.count(b"\n") + (not text.endswith(b"\n") and text != b"")
