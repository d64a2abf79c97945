"""What a person does in the editor: opens our templates, runs them, picks a face, asks for an engine and thinks better of it."""
import os
from itertools import pairwise

import demo_media
import numpy as np
import pytest
from comfy_client import CLIP, SPEECH
from editor import RENDERERS
from latentsync_rtx.lipsync.weights import DEMO

TWO = "two faces.mp4"
TITLE = 220, 148  # px: in the title of the node that the editor is focused on
RUNS = [("lip-sync-a-video", 1, "canvas"), ("lipsync", 7, "canvas"), ("lipsync", 7, "nodes2")]
if os.environ.get("LATENTSYNC_FRONTEND"):
    RUNS.append(("lip-sync-a-video", 1, "nodes2"))
BOTH = pytest.mark.parametrize("nodes_2", RENDERERS, indirect=True)
FAST = {"steps": 1, "guidance": 1.0, "release_runner": False}


@pytest.fixture(scope="module", autouse=True)
def two_faces(comfy):
    """A clip with a face on the left and its mirror image on the right."""
    frames = (np.hstack([frame, frame[:, ::-1]]) for frame in demo_media.face_frames(0.6, size=(320, 256)))
    demo_media.write_clip(comfy.input / TWO, frames)


@pytest.mark.parametrize("name, ours, nodes_2", RUNS, indirect=["nodes_2"])
def test_template_loads_clean_and_runs(editor, comfy, nodes_2, name, ours):
    editor.open(f"?template={name}&source=latentsync-rtx")
    editor.page.wait_for_function("app.graph.nodes.length > 3")
    editor.settle()
    assert editor.page.get_by_text("Missing Node Types").count() == 0
    assert editor.page.evaluate("app.graph.nodes.filter(one => one.subgraph || one.type.startsWith('LatentSync')).length") == ours
    editor.set("LoadVideo", file=CLIP)
    editor.set("LoadAudio", audio=SPEECH)
    editor.set("LatentSyncDenoise", **FAST)
    editor.set(None, checkpoint=DEMO, seed=ours + 100 * nodes_2)  # a seed of its own, so that nothing of it comes out of the cache
    assert editor.problems() == []
    editor.listen()
    if ours > 1:
        editor.focus("LatentSyncDenoise")
    editor.run()
    if not nodes_2 or editor.version() > (1, 32, 9):  # its "Nodes 2.0" do not write a text anew
        editor.page.wait_for_function("document.body.textContent.includes('Drawing the mouth: ')")  # on the node
    if ours > 1:
        editor.focus("LatentSyncRestore")
    assert editor.ended() == "execution_success", editor.heard("execution_error")
    editor.settle(1)
    editor.shot(f"{name}-{'nodes2-' if nodes_2 else ''}done")
    spoken = [text["text"] for text in editor.heard("progress_text")]
    stages = {text.split(":")[0] for text in spoken}
    assert {"Drawing the mouth", "Decoding faces", "Putting faces back"} <= stages
    assert editor.heard("b_preview_with_metadata"), "the crop in work"
    (result,) = (shown["output"]["images"] for shown in editor.heard("executed") if str(shown["node"]) == "10")
    assert result[0]["type"] == "output" and (comfy.server.base / "output" / result[0]["subfolder"] / result[0]["filename"]).stat().st_size > 1000
    playing = editor.page.locator("video").evaluate_all("all => all.map(one => [one.src || one.querySelector('source')?.src, one.readyState, one.error])")
    for kind in ["output", "temp"] if ours > 1 else ["output"]:  # Save Video's, Restore's
        assert [one for one in playing if f"type={kind}" in one[0] and one[1] >= 1 and one[2] is None], playing


def test_five_inputs_are_all_that_a_person_fills(editor):
    editor.open("?template=lip-sync-a-video&source=latentsync-rtx")
    editor.page.wait_for_function("app.graph.nodes.length > 3")
    names = "(one => [one.inputs.map(input => input.name), one.widgets.map(widget => widget.name)])"
    shown = editor.page.evaluate(f"{names}(app.graph.nodes.find(one => one.subgraph))")
    assert shown == [["video", "speech", "checkpoint", "resolution", "seed"], ["checkpoint", "resolution", "seed"]]


def test_advanced_inputs_come_with_the_menu(editor, nodes_2):
    editor.open("?template=lipsync&source=latentsync-rtx")
    editor.page.wait_for_function("app.graph.nodes.length > 3")
    node = "app.graph.nodes.find(one => one.type === 'LatentSyncDenoise')"
    hidden = f"(() => {{ const node = {node}; return node.widgets.filter(one => !node.isWidgetVisible(one)).map(one => one.name); }})()"
    assert editor.page.evaluate(hidden) == ["release_runner", "silence_db", "resume"]
    editor.focus("LatentSyncDenoise")
    if nodes_2:
        shown = editor.node("LatentSyncDenoise")
        if editor.version() <= (1, 32, 9):
            pytest.skip("its Nodes 2.0 show every input")
        assert "steps" in shown.inner_text() and "silence_db" not in shown.inner_text()
        shown.get_by_test_id("advanced-inputs-button").click()
        shown.get_by_text("silence_db").wait_for()
        return
    editor.shot("advanced-hidden")
    rows = f"{node}.widgets.filter(one => !one.advanced).map(one => one.y)"
    assert len({after - before for before, after in pairwise(editor.page.evaluate(rows))}) == 1, "no gaps"
    editor.page.mouse.click(*TITLE, button="right")
    editor.settle(0.6)
    editor.shot("advanced-menu")
    editor.page.get_by_text("Show Advanced").click()
    assert editor.page.evaluate(hidden) == []
    editor.settle()
    editor.shot("advanced-shown")


@BOTH
def test_a_click_picks_the_face(editor, comfy, nodes_2):
    editor.open("?template=lipsync&source=latentsync-rtx")
    editor.page.wait_for_function("app.graph.nodes.length > 3")
    editor.set("LoadVideo", file=TWO)
    editor.set("LoadAudio", audio=SPEECH)
    editor.set("LatentSyncFaceAlign", min_size=30 + nodes_2)  # not what the cache knows
    editor.focus("LatentSyncFaceAlign")
    strip, view, caption = (editor.page.locator(f".latentsync {part}") for part in (".strip", ".view", ".caption"))
    assert not view.is_visible(), "nothing is looked at before it is asked for"
    editor.click(strip, 0.5)
    editor.page.wait_for_function("document.querySelector('.latentsync .caption').textContent.match(/^0.3.*2 faces/)")
    editor.click(view, 0.75, 0.35)
    assert editor.values("LatentSyncFaceAlign", "face", "face_index") == ["index", 1]
    (seconds,) = editor.values("LatentSyncFaceAlign", "face_time")
    assert seconds == pytest.approx(0.3, abs=0.05)
    assert "Face 1" in caption.inner_text()
    editor.listen()
    editor.page.evaluate("app.queuePrompt(0, 1, [String(app.graph.nodes.find(one => one.type === 'LatentSyncFaceAlign').id)])")  # that node alone
    assert editor.ended() == "execution_success", editor.heard("execution_error")
    editor.settle(1)
    editor.shot(f"face-picked{'-nodes2' if nodes_2 else ''}")
    (shown,) = editor.heard("executed")
    (track,) = shown["output"]["latentsync_track"]
    assert track["frames"] == 15 and min(box[1] for box in track["boxes"]) > 0.5, "the right one, all the way"
    assert "15 of 15 frames" in caption.inner_text()
    assert editor.heard("b_preview_with_metadata"), "the crop in work"
    assert ["/view?" in address for address in editor.pictures("LatentSyncFaceAlign")] == [True], "the contact sheet, and no live picture any more"
    colours = strip.evaluate("one => [...one.getContext('2d').getImageData(one.width / 4, 16, 1, 1).data]")
    assert colours[1] > 1.5 * colours[0], f"green where the face was found, not {colours}"
    editor.set("LoadVideo", file=CLIP)
    assert editor.problems() == []


def test_panels_inside_a_subgraph_know_what_comes_from_outside(editor):
    editor.open("?template=lip-sync-a-video&source=latentsync-rtx")
    editor.page.wait_for_function("app.graph.nodes.length > 3")
    editor.set("LoadVideo", file=TWO)
    editor.page.evaluate("app.graph.nodes.find(one => one.subgraph).widgets.find(one => one.name === 'resolution').value = '512'")
    editor.enter_subgraph()
    editor.focus("LatentSyncFaceAlign")
    strip = editor.page.locator(".latentsync .strip")
    area = strip.bounding_box()
    editor.page.mouse.move(area["x"] + 2, area["y"] + 12)
    editor.page.mouse.down()  # and on, before the length of the clip is known
    editor.page.mouse.move(area["x"] + 0.5 * area["width"], area["y"] + 12)
    editor.page.mouse.up()
    editor.page.wait_for_function("document.querySelector('.latentsync .caption').textContent.match(/^0.3.*2 faces/)")
    known = editor.page.evaluate(
        """async () => {
            const { upstream, valueOf } = await import("/extensions/latentsync-rtx/panel.js");
            const node = app.canvas.graph.nodes.find(one => one.type === "LatentSyncFaceAlign");
            return [upstream(node, "clip").type, valueOf(node, "resolution")];
        }"""
    )
    assert known == ["LoadVideo", "512"]


def test_engine_status_and_a_build_that_is_cancelled(editor, comfy):
    editor.open()
    editor.load(
        {
            "last_node_id": 3, "last_link_id": 0, "version": 0.4, "links": [],
            "nodes": [
                {"id": number, "type": kind, "pos": [400 * number, 100], "size": [360, 300], "order": number, "mode": 0, "flags": {}, "properties": {}}
                for number, kind in ((1, "LatentSyncModelLoad"), (2, "LatentSyncEngineLoad"), (3, "LatentSyncEngineBuild"))
            ],
        }
    )  # fmt: skip
    editor.page.evaluate("for (const target of [2, 3]) app.graph.getNodeById(1).connect(0, app.graph.getNodeById(target), 0)")
    load, build = (editor.page.locator(".latentsync").nth(number) for number in (0, 1))
    editor.page.wait_for_function("document.querySelectorAll('.latentsync dl')[1]?.textContent.includes('back end')")
    assert "PyTorch" in load.inner_text() and "why not TensorRT-RTX: there is no NVIDIA GPU here" in load.inner_text()
    button = load.get_by_role("button")
    assert button.inner_text() == "Build for this GPU" and button.is_disabled() and "NVIDIA" in button.get_attribute("title")
    editor.settle(1)
    editor.shot("engine-status")
    editor.listen()
    build.get_by_role("button", name="Build now").click()
    build.get_by_role("button", name="Cancel the build").wait_for()
    editor.page.wait_for_function("heard.some(([kind, data]) => kind === 'progress_text' && data.text.startsWith('1/2 Exporting the network'))")
    editor.shot("engine-build")
    build.get_by_role("button", name="Cancel the build").click()
    assert editor.ended() == "execution_interrupted"
    editor.page.wait_for_function("document.querySelectorAll('.latentsync .note')[1].textContent.includes('cancelled')")
    assert build.get_by_role("button").inner_text() == "Build now"
    engines = comfy.server.base / "models" / "latentsync" / "engines"
    assert not [path for path in engines.rglob("*") if path.suffix == ".plan"]
