"""A low watermark in a file: replaced as a whole, durable when a save returns."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from compaction.api.catalog.reasons import UNDEFINED
from compaction.catalogs.errors import WatermarkFileError
from compaction.catalogs.model.hybrid import MAXIMUM

_LONGEST: Final = 20


class WatermarkFile:
    """Decimal digits and a line feed."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> int:
        """UNDEFINED when there is no file. Raises WatermarkFileError."""
        try:
            with self._path.open("rb") as file:
                found = file.read(_LONGEST + 1)
        except FileNotFoundError:
            return UNDEFINED
        except OSError as error:
            raise WatermarkFileError(str(self._path), error.strerror or "cannot be read") from error
        digits = found.removesuffix(b"\n")
        if not digits.isdigit() or not 0 < int(digits) <= MAXIMUM:
            raise WatermarkFileError(str(self._path), "does not hold a hybrid timestamp")
        return int(digits)

    def save(self, timestamp: int) -> None:
        """Raises WatermarkFileError: the file is what it was."""
        new = self._path.with_name(f"{self._path.name}.new")
        try:
            with new.open("wb") as file:
                file.write(b"%d\n" % timestamp)
                file.flush()
                os.fsync(file.fileno())
            os.replace(new, self._path)
            directory = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)
        except OSError as error:
            raise WatermarkFileError(str(self._path), error.strerror or "cannot be written") from error


class WatermarkMemory:
    """For a participant whose data does not survive its process either."""

    def __init__(self, timestamp: int = UNDEFINED) -> None:
        self._timestamp = timestamp

    def load(self) -> int:
        """What was saved last."""
        return self._timestamp

    def save(self, timestamp: int) -> None:
        """Until the process ends."""
        self._timestamp = timestamp
