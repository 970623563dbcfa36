"""The browser for the console: found on PATH or installed, for tests and for pictures in the documentation.

`python -m tools.browser` installs Debian's Chromium where PATH has no browser; `--screenshots DIRECTORY` takes pictures
of the demo that `make demo KEEP=1` left running.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import click
from playwright.sync_api import Browser, Page, sync_playwright

from compaction.errors import CompactionError
from tools.node.prepare import ensure_packages

PROGRAMS: Final = ("chromium", "chromium-browser", "google-chrome")
FLAGS: Final = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
)
"""Chromium as root has no sandbox; without the others it asks hosts elsewhere for what no page of ours is about."""
DEMO: Final = Path(".demo/control-plane/kubeconfig")
NAMESPACE: Final = "compaction-demo"
SIZES: Final = {"": (1280, 900), "-narrow": (390, 844)}


def find_browser() -> str | None:
    """The first of `PROGRAMS` on PATH."""
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


@contextmanager
def launched(program: str) -> Iterator[Browser]:
    """The browser, without a window, until the block ends."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def console_of(kubeconfig: Path, *args: str) -> Iterator[str]:
    """A console that was started; the address that it prints."""
    command = [sys.executable, "-m", "compaction.cli.main", "ui", "--port", "0", "--kubeconfig", str(kubeconfig), *args]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().removeprefix("Sign in: ").strip()
        finally:
            process.terminate()


@click.command()
@click.option("--screenshots", "directory", type=click.Path(file_okay=False, path_type=Path), help="Where to put them.")
@click.option("--kubeconfig", type=click.Path(dir_okay=False, path_type=Path), default=DEMO)
def command(*, directory: Path | None, kubeconfig: Path) -> None:
    """Install a browser where there is none, or take pictures of the console."""
    try:
        if find_browser() is None:
            ensure_packages({PROGRAMS[0]: PROGRAMS[0]}, report=click.echo, user="the console's tests")
    except CompactionError as error:
        raise click.ClickException(str(error)) from error
    program = find_browser()
    assert program is not None, "it was installed"
    if directory is not None:
        directory.mkdir(parents=True, exist_ok=True)
        with console_of(kubeconfig, "-n", NAMESPACE) as address, launched(program) as browser:
            _take(browser.new_page(), address, directory)


def _take(page: Page, address: str, directory: Path) -> None:
    """Pictures of the fleet and of its first policy, in both sizes; of the job that stands first in its table."""
    base = address.partition("/#")[0]
    page.goto(address)
    page.locator("tbody a").first.wait_for()
    policy = page.locator("tbody a").first.get_attribute("href")
    page.goto(f"{base}{policy}")
    page.locator("a[href^='/job/']").first.wait_for()
    job = page.locator("a[href^='/job/']").first.get_attribute("href")
    for name, path in {"fleet": "/", "policy": policy, "job": job, "failures": "/failures"}.items():
        for suffix, (width, height) in SIZES.items():
            page.set_viewport_size({"width": width, "height": height})
            page.goto(f"{base}{path}")
            page.locator("[data-live=live]").wait_for()
            picture = directory / f"console-{name}{suffix}.png"
            page.screenshot(path=picture)
            click.echo(picture)


if __name__ == "__main__":
    command()
