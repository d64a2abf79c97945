"""Help pages and translations as the front end asks a real server for them."""
import json
from pathlib import Path

import pytest
import requests

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def nodes(comfy) -> dict:
    return {name: info for name, info in comfy.get("/object_info").items() if name.startswith("LatentSync")}


def inputs_of(info: dict) -> dict:
    return {**info["input"].get("required", {}), **info["input"].get("optional", {})}


def test_every_node_has_its_page_in_each_language(comfy, nodes):
    for name, info in nodes.items():
        pack = info["python_module"].removeprefix("custom_nodes.")  # the front end makes the address of it
        pages = [requests.get(f"{comfy.url}/extensions/{pack}/docs/{page}", timeout=30) for page in (f"{name}.md", f"{name}/zh.md", f"{name}/ja.md")]
        assert [page.status_code for page in pages] == [200, 200, 200], name
        texts = [page.content.decode("utf-8") for page in pages]
        assert info["display_name"] in texts[0] and len(set(texts)) == 3
        assert all(f"**{one}**" in texts[0] for one in inputs_of(info)), name


def test_translations_reach_the_front_end(comfy, nodes):
    told = comfy.get("/i18n")
    for language in ("en", "zh", "ja"):
        assert set(told[language]["nodeDefs"]) >= set(nodes)
        assert told[language]["nodeCategories"]["LatentSync"]
    assert told["zh"]["nodeDefs"]["LatentSyncDenoise"] == json.loads((ROOT / "locales/zh/nodeDefs.json").read_text(encoding="utf-8"))["LatentSyncDenoise"]


def test_tooltips_and_advanced_marks_reach_the_front_end(nodes):
    for name, info in nodes.items():
        assert all(spec[1].get("tooltip") for spec in inputs_of(info).values()), name
    assert nodes["LatentSyncFaceAlign"]["input"]["required"]["min_score"][1]["advanced"] is True


@pytest.mark.parametrize(
    ("target", "value"),
    [
        ("LatentSyncFaceAlign.work_rate", "30"),
        ("LatentSyncFaceAlign.detector", "../../detector"),
        ("LatentSyncDenoise.length", "forever"),
        ("LatentSyncEngineLoad.precision", "int4"),
        ("LatentSyncAudioFeatures.windows", "round"),
        ("LatentSyncRestore.encoder", "-f null"),
    ],
)
def test_a_choice_that_is_in_no_list_is_refused_by_name(comfy, example, target, value):
    from comfy_client import Refused

    with pytest.raises(Refused) as refused:
        comfy.run(example({target: value}))
    assert value in str(refused.value) and target.split(".")[1] in str(refused.value)
