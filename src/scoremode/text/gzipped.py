"""Files of rows that are packed by gzip, as C4's `.json.gz`."""

import io
import zlib
from gzip import BadGzipFile, GzipFile

from scoremode.errors import CorpusError
from scoremode.lib.files import MOST_TEXT

__all__ = ["unpacked"]


def unpacked(data: bytes, name: str) -> bytes:
    """The bytes that a file of a data set holds: what its name says is packed is unpacked.

    Raises CorpusError for what is no gzip, breaks off, or holds more than MOST_TEXT bytes.
    """
    if not name.lower().endswith(".gz"):
        return data
    try:
        with GzipFile(fileobj=io.BytesIO(data)) as file:
            found = file.read(MOST_TEXT + 1)
    except (BadGzipFile, EOFError, zlib.error) as error:
        raise CorpusError(f"{name}: not a readable gzip file: {error}") from None
    if len(found) > MOST_TEXT:
        raise CorpusError(f"{name}: unpacks to more than {MOST_TEXT >> 20:,} MiB")
    return found
