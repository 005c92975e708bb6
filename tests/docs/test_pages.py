"""The documentation tells the truth: its code runs, the tests that it names are there."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
PAGES = ["concepts.md", "data.md", "estimator.md", "quickstart.md"]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def runnable(text):
    """The page's Python blocks but those marked as not to be run."""
    return BLOCK.findall(
        re.sub(r"<!-- not run:[^>]*-->\n```python\n.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    )


@pytest.mark.parametrize("page", PAGES)
def test_the_code_of_a_page_runs_from_top_to_bottom(page, tmp_path):
    """In a process of its own, with the devices that a reader has; line numbers are those of the page."""
    text = (ROOT / "docs" / page).read_text()
    blocks = runnable(text)
    assert blocks
    script = ""
    for block in blocks:
        script += "\n" * (text[: text.index(block)].count("\n") - script.count("\n")) + block
    (tmp_path / "page.py").write_text(script)
    done = subprocess.run([sys.executable, "page.py"], cwd=tmp_path, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr


def test_the_tests_that_the_faq_names_are_there():
    named = set(re.findall(r"tests/faq/test_\w+\.py", (ROOT / "docs" / "faq.md").read_text()))
    there = {path.relative_to(ROOT).as_posix() for path in (ROOT / "tests" / "faq").glob("test_*.py")}
    assert named == there


def test_the_faq_has_fourteen_questions():
    assert len(re.findall(r"^## \d+\. ", (ROOT / "docs" / "faq.md").read_text(), re.MULTILINE)) == 14


def test_pictures_and_links_of_the_readme_are_there():
    targets = re.findall(r"\]\(([^)#]+)[^)]*\)", (ROOT / "README.md").read_text())
    assert [t for t in targets if "://" not in t and not (ROOT / t).exists()] == []
