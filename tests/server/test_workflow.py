"""The editor's form of the examples is what `make workflows` makes of the API form and of the nodes as they are."""
import json
from pathlib import Path

import pytest
import workflow as tool  # ours, in tools/

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("source", sorted((ROOT / "examples").glob("*.api.json")), ids=lambda path: path.name)
def test_editor_form_is_up_to_date(comfy, source):
    api = json.loads(source.read_text())
    saved = json.loads(source.with_name(source.name.replace(".api.json", ".json")).read_text())
    assert saved == tool.ui_form(api, comfy.get("/object_info")), "run `make workflows`"
    links = {(int(value[0]), int(key)) for key, node in api.items() for value in node["inputs"].values() if isinstance(value, list)}
    assert {(link[1], link[3]) for link in saved["links"]} == links
