"""Public sentences use the words of kubectl, Kueue and cert-manager, not those of a translation."""

from __future__ import annotations

from pathlib import Path

from house.english import found_in, of_module, of_page, public


def test_public_sentences_hold_no_banned_word() -> None:
    texts = list(public())
    assert len(texts) > 5000, "or the check reads nothing"
    assert [line for text in texts for line in found_in(text)] == []


def test_banned_words_are_found_in_every_form_of_text(tmp_path: Path) -> None:
    """A docstring, a string of two lines, an f-string; not what stands in backticks or is the name of a page."""
    module = tmp_path / "module.py"
    module.write_text(
        '"""Is told\nto nobody."""\n'
        'raise E(\n    "mend "\n    f"job {one}: gives {two} back "\n    "as far\\n as known")\n'
        'named = "`told` by docs/adr/0235-a-policy-rests.md: the rest"\n'
    )
    found = [line.partition("; write ")[0] for item in of_module(module) for line in found_in(item)]
    assert sorted(found) == [
        'module.py:1: "told"',
        'module.py:2: "nobody"',
        'module.py:4: "as far as"',
        'module.py:4: "mend"',
        'module.py:5: "gives {} back"',
    ]
    page = tmp_path / "page.md"
    page.write_text("# Page\n[The policy](a-policy-rests.md) is\nset\naside.\n")
    assert [line.partition(";")[0] for line in found_in(of_page(page))] == ['page.md:3: "set aside"']
