"""What the package says about itself: its license, and that the license travels with it."""

from __future__ import annotations

import tomllib

import pytest

from house.sources import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_license_is_named_and_its_files_exist() -> None:
    assert PROJECT["license"] == "Apache-2.0"
    assert PROJECT["license-files"] == ["LICENSE", "NOTICE"]
    assert "Apache License" in (ROOT / "LICENSE").read_text()
    assert "Apache License, Version 2.0" in (ROOT / "NOTICE").read_text()


@pytest.mark.parametrize("recipe", ["Dockerfile", "spark-images/Dockerfile"])
def test_an_image_is_built_with_the_license_files(recipe: str) -> None:
    """The package cannot be built without them; .dockerignore keeps out what it does not name."""
    packaged = [line for line in (ROOT / recipe).read_text().splitlines() if line.startswith("COPY pyproject.toml")]
    assert [set(PROJECT["license-files"]) <= set(line.split()) for line in packaged] == [True]
    let_in = (ROOT / ".dockerignore").read_text().splitlines()
    assert {f"!{name}" for name in PROJECT["license-files"]} <= set(let_in)


def test_the_repository_has_one_url() -> None:
    assert list(PROJECT["urls"]) == ["Repository"]
    assert PROJECT["urls"]["Repository"].startswith("https://")
