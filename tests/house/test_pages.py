"""What the pages refer to exists, decisions have one form, and nothing cites a document outside of the repository."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from house.sources import PACKAGE, ROOT, Module, Page, anchor_of, broken_links, read_pages

PAGES = read_pages()
RECORDS = [page for page in PAGES if re.match(r"docs/adr/\d{4}-", page.name)]
STATUS = re.compile(r"(Proposed|Accepted|Rejected|Superseded)(; .+)?")
SECTIONS = ("Context", "Decision", "Consequences")
OUTSIDE = re.compile(r"\bDESIGN\b|\bresearch/[\w-]+\.md|\bshared/(DESIGN|research)")
CITED = re.compile(r"docs/[\w./-]+\.md(?:#[\w-]+)?")
SOURCE = re.compile(r"`((?:[\w-]+/)*\w+\.py)`")


def test_the_pages_are_found() -> None:
    names = {page.name for page in PAGES}
    assert {"README.md", "CONTRIBUTING.md", "docs/README.md", "docs/design/README.md", "tests/README.md"} <= names
    assert len(RECORDS) > 50


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_resolves(page: Page) -> None:
    assert broken_links(page) == []


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# One\n\n## One\n\n## `code` and [link](x.md)\n")
    text = "[a](other.md) [b](other.md#one-1) [c](#top) [d](gone.md) [e](other.md#two) [f](https://x.example/y.md)\n"
    page = Page("page.md", tmp_path / "page.md", f"# Top\n{text}```\n[g](none.md)\n```\n[h](other.md#code-and-link)\n")
    page.path.write_text(page.text)
    assert broken_links(page) == ["gone.md", "other.md#two"]
    assert anchor_of("10. Try it: the `fencing` drill") == "10-try-it-the-fencing-drill"


@pytest.mark.parametrize("record", RECORDS, ids=lambda page: Path(page.name).stem)
def test_a_decision_has_the_form_of_decisions(record: Page) -> None:
    """Title with its number, date, status, then context, decision, consequences; alternatives where there are any."""
    lines = record.text.splitlines()
    assert re.fullmatch(rf"# {Path(record.name).name[:4]}: \S.*", lines[0])
    assert lines[1] == lines[4] == ""
    assert re.fullmatch(r"\* Date: 20\d\d-\d\d-\d\d", lines[2])
    assert lines[3].startswith("* Status: ")
    assert STATUS.fullmatch(lines[3].removeprefix("* Status: "))
    parts = re.split(r"^## (.+)$", record.text, flags=re.MULTILINE)
    assert tuple(parts[1::2]) in {SECTIONS, (*SECTIONS, "Alternatives")}
    assert all(text.strip() for text in parts[2::2])


def test_the_index_of_decisions_has_their_titles_in_order() -> None:
    index = (ROOT / "docs" / "adr" / "README.md").read_text()
    rows = re.findall(r"^\| \[(\d{4})\]\(([^)]+)\) \| (.+?) \| (\w+) \|$", index, flags=re.MULTILINE)
    expected = []
    for record in RECORDS:
        number, title = record.text.splitlines()[0].removeprefix("# ").split(": ", 1)
        status = record.text.splitlines()[3].removeprefix("* Status: ").partition(";")[0]
        expected.append((number, Path(record.name).name, title, status))
    assert rows == expected


def test_nothing_cites_a_document_outside_of_the_repository() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    texts = {".py", ".md", ".yaml", ".yml", ".toml", ".txt", ".json", ".go", ".sh", ""}
    files = [ROOT / name for name in listed.split("\0") if name and Path(name).suffix in texts]
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in files
        if path.is_file() and path != Path(__file__)
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1)
        if OUTSIDE.search(line)
    ]
    assert len(files) > 500
    assert found == []


def test_pages_that_the_code_cites_exist(modules: list[Module]) -> None:
    sources = [(module.name, module.text) for module in modules]
    sources += [(str(path.relative_to(ROOT)), path.read_text()) for path in (ROOT / "tests").rglob("*.py")]
    pages = {page.name: page for page in PAGES}
    cited = [
        (name, target)
        for name, text in sources
        if name != "tests/house/test_pages.py"
        for target in CITED.findall(text)
    ]
    assert len(cited) > 50
    missing = [
        f"{name}: {target}"
        for name, target in cited
        for page, _, anchor in [target.partition("#")]
        if page not in pages or (anchor and anchor not in pages[page].anchors)
    ]
    assert missing == []


def test_sources_that_the_pages_name_exist() -> None:
    """A name may leave out leading folders, as long as some file ends with it."""
    files = [
        f"/{path.relative_to(ROOT)}"
        for folder in ("operator", "tools", "demos", "tests", "spark-images", "examples")
        for path in (ROOT / folder).rglob("*.py")
    ]
    assert PACKAGE.name in files[0]
    gone = [
        f"{page.name}: {name}"
        for page in PAGES
        if page.name != "CHANGELOG.md"
        for name in SOURCE.findall(page.text)
        if not any(file.endswith(f"/{name}") for file in files)
    ]
    assert gone == []
