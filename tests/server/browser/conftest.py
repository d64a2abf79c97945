"""ComfyUI's page in a real Chromium, on the server that all server tests share.

By default it is the frontend that is installed, with nodes drawn on a canvas; what is BOTH runs in "Nodes 2.0" too. All of it, in both, on another one:

    pip download --no-deps comfyui-frontend-package==1.58.1 && unzip -d /tmp/frontend comfyui_frontend_package-*.whl
    LATENTSYNC_FRONTEND=/tmp/frontend/comfyui_frontend_package/static .venv/bin/python -m pytest tests/server/browser
"""
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import chromium
from editor import RENDERERS, Editor


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


@pytest.fixture(params=RENDERERS if os.environ.get("LATENTSYNC_FRONTEND") else RENDERERS[:1])
def nodes_2(request) -> bool:
    """Whether the editor draws "Nodes 2.0"."""
    return request.param == "nodes2"


@pytest.fixture
def editor(browser, comfy, nodes_2) -> Iterator[Editor]:
    """A fresh page of the editor; what went wrong in it fails the test."""
    page = browser.new_page(viewport={"width": 1600, "height": 1000})
    opened = Editor(page, comfy.url, nodes_2)
    yield opened
    page.close()
    assert not opened.errors, opened.errors
