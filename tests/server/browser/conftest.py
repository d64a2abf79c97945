"""ComfyUI's page in a real Chromium, on the server that all server tests share."""
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import chromium
from editor import Editor


@pytest.fixture(scope="module")
def browser() -> Iterator:
    """One for each file of tests: Playwright keeps an event loop running in this thread, which other tests would stumble over."""
    program = chromium.find()
    if program is None:
        pytest.skip(f"no Chromium: {chromium.HOW}")
    api = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
    with api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=list(chromium.FLAGS))
        yield started
        started.close()


@pytest.fixture
def editor(browser, comfy) -> Iterator[Editor]:
    """A fresh page of the editor; what went wrong in it fails the test."""
    page = browser.new_page(viewport={"width": 1600, "height": 1000})
    opened = Editor(page, comfy.url)
    yield opened
    page.close()
    assert not opened.errors, opened.errors
