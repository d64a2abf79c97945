"""The editor's form of the examples is what `make workflows` makes of the API form and of the nodes as they are."""
import json
from pathlib import Path

import requests
import workflow as tool  # ours, in tools/

ROOT = Path(__file__).resolve().parents[2]


def test_editor_forms_are_up_to_date(comfy):
    for path, wanted in tool.forms(comfy.get("/object_info")).items():
        assert json.loads(path.read_text(encoding="utf-8")) == wanted, f"{path.name}: run `make workflows`"


def test_whole_graph_has_the_links_of_the_api_form():
    api = json.loads((ROOT / "examples" / "api" / "lipsync.json").read_text(encoding="utf-8"))
    saved = json.loads((ROOT / "examples" / "lipsync.json").read_text(encoding="utf-8"))
    links = {(int(value[0]), int(key)) for key, node in api.items() for value in node["inputs"].values() if isinstance(value, list)}
    assert {(link[1], link[3]) for link in saved["links"]} == links


def test_comfyui_offers_templates_and_blueprint(comfy):
    assert sorted(comfy.get("/workflow_templates")["latentsync-rtx"]) == ["lip-sync-a-video", "lipsync"], "and nothing that is no template"
    for name in ("lip-sync-a-video", "lipsync"):
        answer = requests.get(f"{comfy.url}/api/workflow_templates/latentsync-rtx/{name}.jpg", timeout=30)
        assert answer.status_code == 200 and answer.content[:2] == b"\xff\xd8" and len(answer.content) < 100_000
    (blueprint,) = (one for one in comfy.get("/global_subgraphs").values() if one["info"]["node_pack"] == "custom_nodes.latentsync-rtx")
    assert blueprint["name"] == "Lip-sync a video"
