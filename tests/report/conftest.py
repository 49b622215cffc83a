from __future__ import annotations

from collections.abc import Iterator

import pytest
from browser import Browser, browser


@pytest.fixture(scope="session")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One browser for all pages of a report; the test is skipped if there is none."""
    with browser(tmp_path_factory.mktemp("browser")) as each:
        yield each
