"""A browser as people have it, and consoles that it looks at."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from playwright.sync_api import Browser

from support.cluster.by_kubectl import User
from tools.browser import console_of, find_browser, launched


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """The browser of PATH. Where there is none only these tests are skipped; in CI its absence fails."""
    program = find_browser()
    if program is None:
        missing = "no Chromium on PATH: make browser installs it"
        if os.environ.get("CI") == "true":
            pytest.fail(missing)
        pytest.skip(missing)
    with launched(program) as found:
        yield found


@pytest.fixture
def console() -> Iterator[Callable[[User], str]]:
    """Start `compactor ui` as a user; the address that it prints."""
    with ExitStack() as stack:
        yield lambda user: stack.enter_context(console_of(user.kubeconfig))
