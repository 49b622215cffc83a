"""What every report is made from."""

from __future__ import annotations

from typing import Protocol

from wellcond.results import Row


class Subject(Protocol):
    """One network: its rows, and what numbers cannot say. A `Diagnosis` is one."""

    def rows(self) -> list[Row]: ...
    @property
    def not_covered(self) -> dict[str, str]: ...
    @property
    def failed(self) -> dict[str, str]: ...
    @property
    def about(self) -> dict[str, str]: ...
