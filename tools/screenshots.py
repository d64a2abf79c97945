"""`make screenshots`: a picture of each of our nodes in ComfyUI's own editor, web/docs/<NodeId>.png, for the help pages.

A real server, a real browser, the demo model and the demo's media. The whole graph is run first, so that nodes show what they show after a run.
    python tools/screenshots.py [--front-end FOLDER] [--into FOLDER]     another front end's `static` folder; another place for the pictures
"""
import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path

import chromium
import cv2
import demo_media
import face_models
import numpy as np
import speech
from comfyui import ROOT, Server

sys.path.insert(0, str(ROOT / "tests" / "server" / "browser"))
from editor import Editor

OTHERS = ("LatentSyncEngineBuild", "LatentSyncCropsToImages", "LatentSyncImagesToCrops", "LatentSyncCompare")  # not in the whole graph
MOST_BYTES = 60_000
COLOURS = 64  # of a palette: interfaces have few, and the faces in them stay faces
SECONDS = 1.6  # of the media


# Out of the others' way, and wide enough for its title.
ALONE = """([kind, number]) => {
    const node = app.graph.nodes.find(one => one.type === kind);
    node.pos = [20000 + 2000 * number, 0];
    node.setSize([Math.max(330, node.size[0]), node.size[1]]);
}"""


def media(folder: Path) -> None:
    demo_media.write_clip(folder / "video.mp4", demo_media.face_frames(SECONDS, size=(320, 256)))
    speech.save_wav(folder / "speech.wav", *demo_media.spoken(SECONDS))


def place(editor: Editor, kind: str) -> dict:
    """Show the node of that class alone at full size -> where it is in the page, px."""
    return editor.page.evaluate(
        """kind => {
            const node = app.graph.nodes.find(one => one.type === kind), view = app.canvas.ds, box = node.getBounding?.() ?? [...node.pos, ...node.size];
            view.scale = 1;
            view.offset = [-box[0] + 160, -box[1] + 130];
            app.canvas.deselectAll?.();
            app.canvas.setDirty(true, true);
            const area = app.canvas.canvas.getBoundingClientRect();
            return { x: area.x + 160 - 12, y: area.y + 130 - 12, width: box[2] + 24, height: box[3] + 24 };
        }""",
        kind,
    )


def shrunk(picture: bytes) -> bytes:
    """The same PNG with a palette, and smaller if it must be."""
    from io import BytesIO

    from PIL import Image

    image = Image.open(BytesIO(picture)).convert("RGB")
    while True:
        out = BytesIO()
        image.quantize(COLOURS, dither=Image.Dither.NONE).save(out, "PNG", optimize=True)
        if out.tell() < MOST_BYTES:
            return out.getvalue()
        image = Image.fromarray(cv2.resize(np.asarray(image), None, fx=0.9, fy=0.9, interpolation=cv2.INTER_AREA))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--front-end", type=Path, help="a front end's static folder, instead of the installed one")
    parser.add_argument("--into", type=Path, default=ROOT / "web" / "docs")
    options = parser.parse_args()
    program = chromium.find()
    if program is None:
        sys.exit(f"no Chromium: {chromium.HOW}")
    from playwright.sync_api import sync_playwright

    options.into.mkdir(parents=True, exist_ok=True)
    arguments = ["--front-end-root", str(options.front_end.resolve())] if options.front_end else []
    with tempfile.TemporaryDirectory() as base, sync_playwright() as playwright:
        folder = Path(base)
        (folder / "input").mkdir()
        media(folder / "input")
        face_models.fetch(ROOT / ".cache" / "face")
        shutil.copytree(ROOT / ".cache" / "face", folder / "models" / "latentsync" / "face")
        with Server(folder, arguments) as server:
            browser = playwright.chromium.launch(executable_path=program, args=list(chromium.FLAGS))
            editor = Editor(browser.new_page(viewport={"width": 1500, "height": 1700}), server.url).open()
            editor.load(json.loads((ROOT / "examples" / "lipsync.json").read_text(encoding="utf-8")))
            editor.settle(1)
            editor.page.evaluate(
                """kinds => {
                    for (const [row, kind] of kinds.entries()) {
                        const node = LiteGraph.registered_node_types[kind] && LiteGraph.createNode(kind);
                        if (!node) continue;
                        node.pos = [3000, 100 + 700 * row];
                        app.graph.add(node);
                        const model = app.graph.nodes.find(one => one.type === 'LatentSyncModelLoad');
                        if (node.inputs?.[0]?.name === 'model') model.connect(0, node, 0);
                    }
                }""",
                list(OTHERS),
            )
            editor.set("LatentSyncDenoise", steps=2)
            editor.listen()
            restore = editor.page.evaluate("app.graph.nodes.filter(one => one.type === 'SaveVideo').map(one => String(one.id))")
            editor.page.evaluate("ids => app.queuePrompt(0, 1, ids)", restore)
            print(editor.ended())
            editor.focus("LatentSyncFaceAlign")
            editor.click(editor.page.locator(".latentsync .strip"), 0.4)
            editor.settle(2)
            ours = editor.page.evaluate("app.graph.nodes.filter(one => one.type.startsWith('LatentSync')).map(one => one.type)")
            for kind in ours:
                editor.page.evaluate(ALONE, [kind, ours.index(kind)])
                place(editor, kind)
                editor.settle(0.6)
                clip = place(editor, kind)
                editor.settle(0.3)
                path = options.into / f"{kind}.png"
                path.write_bytes(shrunk(editor.page.screenshot(clip=clip)))
                print(f"{path}: {path.stat().st_size} bytes")
            browser.close()


if __name__ == "__main__":
    main()
