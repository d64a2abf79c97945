"""`make workflows`: makes the editor's form of the examples from their API form, with the schemas of a real ComfyUI.

The API form (examples/api/) is the one we edit. From it come the whole graph, the template "Lip-sync a video" in which all of our nodes are one
node with the five inputs that a person fills, and that node alone as a blueprint (subgraphs/), which ComfyUI lists among its nodes.
"""
import json
import tempfile
import urllib.request
import uuid
from pathlib import Path

from comfyui import ROOT, Server

COLUMN, ROW = 400, 60  # spacing in the graph, pixels
WIDGETS = ("INT", "FLOAT", "STRING", "BOOLEAN", "COMBO")

SHOWN = {"LoadVideo": 300, "LoadAudio": 60, "SaveVideo": 280, "LatentSyncEngineLoad": 130, "LatentSyncFaceAlign": 640, "LatentSyncRestore": 280}  # pixels
TITLE = "Lip-sync a video"
OUTSIDE = ("LoadVideo", "LoadAudio", "SaveVideo")  # what stays beside the one node
VISIBLE = {  # the one node's inputs: name -> the input of a node in it
    "video": ("LatentSyncFaceAlign", "clip"),
    "speech": ("LatentSyncAudioFeatures", "audio"),
    "checkpoint": ("LatentSyncModelLoad", "checkpoint"),
    "resolution": ("LatentSyncFaceAlign", "resolution"),
    "seed": ("LatentSyncDenoise", "seed"),
}
RESULT = ("LatentSyncRestore", "video")
INPUT_NODE, OUTPUT_NODE = -10, -20  # the ids by which the editor knows the two edges of a subgraph
DESCRIPTION = "Makes the face in a video speak other words: a clip and a speech in, the lip-synced clip with that speech out."


def is_widget(spec: list) -> bool:
    return isinstance(spec[0], list) or spec[0] in WIDGETS


def depths(graph: dict) -> dict[str, int]:
    """How many links lie between a node and the farthest node it depends on: its column."""
    found: dict[str, int] = {}

    def depth(node: str) -> int:
        if node not in found:
            sources = [value[0] for value in graph[node]["inputs"].values() if isinstance(value, list)]
            found[node] = 1 + max((depth(source) for source in sources), default=-1)
        return found[node]

    for node in graph:
        depth(node)
    return found


def inputs_of(info: dict) -> dict[str, list]:
    return {name: spec for group in ("required", "optional") for name, spec in info["input"].get(group, {}).items()}


def ui_form(graph: dict, object_info: dict) -> dict:
    """The graph as ComfyUI's editor saves it. Widget values stand in the order of the node's schema."""
    columns, bottoms, nodes, links = depths(graph), {}, [], []
    outgoing: dict[tuple[str, int], list[int]] = {}
    for order, (key, node) in enumerate(sorted(graph.items(), key=lambda item: (columns[item[0]], int(item[0])))):
        info = object_info[node["class_type"]]
        sockets, values = [], []
        for name, spec in sorted(inputs_of(info).items(), key=lambda item: is_widget(item[1])):  # the editor lists sockets first
            value = node["inputs"].get(name)
            kind = "COMBO" if isinstance(spec[0], list) else spec[0]
            if isinstance(value, list):
                links.append([len(links) + 1, int(value[0]), value[1], int(key), len(sockets), object_info[graph[value[0]]["class_type"]]["output"][value[1]]])
                outgoing.setdefault((value[0], value[1]), []).append(len(links))
                sockets.append({"name": name, "type": kind, "link": len(links)})
            elif is_widget(spec):
                sockets.append({"name": name, "type": kind, "widget": {"name": name}, "link": None})
                options = spec[1] if len(spec) > 1 else {}
                values.append(options.get("default") if value is None else value)
                if options.get("control_after_generate"):
                    values.append("fixed")
                if any(options.get(flag) for flag in ("image_upload", "video_upload")):
                    values.append("image")
            else:
                sockets.append({"name": name, "type": kind, "link": None})
        height = 60 + 26 * (len(sockets) + len(info["output"])) + SHOWN.get(node["class_type"], 0)
        column = columns[key]
        y = bottoms.get(column, 100)
        bottoms[column] = y + height + ROW
        nodes.append(
            {
                "id": int(key), "type": node["class_type"], "pos": [100 + COLUMN * column, y], "size": [330, height], "flags": {},
                "order": order, "mode": 0, "inputs": sockets, "outputs": info["output"], "title": node.get("_meta", {}).get("title"),
                "properties": {"Node name for S&R": node["class_type"]}, "widgets_values": values,
            }
        )
    for node in nodes:
        info = object_info[node["type"]]
        node["outputs"] = [
            {"name": name, "type": kind, "links": outgoing.get((str(node["id"]), slot), [])}
            for slot, (name, kind) in enumerate(zip(info["output_name"], info["output"], strict=True))
        ]
        if node["title"] is None:
            node["title"] = info["display_name"]
    return {
        "last_node_id": max(int(key) for key in graph), "last_link_id": len(links), "nodes": nodes, "links": links, "groups": [],
        "config": {}, "extra": {}, "version": 0.4,
    }


def identifier(*names: str) -> str:
    """The same UUID every time for the part of our subgraph with these names."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, "/".join(("latentsync-rtx", TITLE, *names))))


def folded(graph: dict, object_info: dict) -> tuple[dict, dict]:
    """The graph with our nodes in a subgraph: (template, blueprint with the subgraph's node alone), both in the editor's form."""
    whole = ui_form(graph, object_info)
    outer = [node for node in whole["nodes"] if node["type"] in OUTSIDE]
    inner = [node for node in whole["nodes"] if node["type"] not in OUTSIDE]
    inside = {node["id"]: node for node in inner}
    by_class = {node["type"]: node for node in inner}
    links = [dict(zip(("id", "origin_id", "origin_slot", "target_id", "target_slot", "type"), link, strict=True)) for link in whole["links"]]
    kept = [link for link in links if link["origin_id"] in inside and link["target_id"] in inside]

    last, sockets, edges, values, feeds, proxies = len(links), [], [], [], [], []
    one = whole["last_node_id"] + 1
    for slot, (name, (kind, input_name)) in enumerate(VISIBLE.items()):
        node = by_class[kind]
        place = next(index for index, socket in enumerate(node["inputs"]) if socket["name"] == input_name)
        socket = node["inputs"][place]
        feeds += [[link["id"], link["origin_id"], link["origin_slot"], one, slot, link["type"]] for link in links if link["id"] == socket["link"]]
        last += 1
        kept.append({"id": last, "origin_id": INPUT_NODE, "origin_slot": slot, "target_id": node["id"], "target_slot": place, "type": socket["type"]})
        edges.append({"id": identifier("input", name), "name": name, "type": socket["type"], "linkIds": [last]})
        sockets.append({"name": name, "type": socket["type"], "link": socket["link"]})
        if "widget" in socket:
            widgets = [entry["name"] for entry in node["inputs"] if "widget" in entry]
            sockets[-1]["widget"] = {"name": name}
            proxies.append(["-1", name])
            values.append(node["widgets_values"][widgets.index(input_name)])  # extra values (fixed, image) only ever follow the last of ours
        socket["link"] = last

    node = by_class[RESULT[0]]
    place = next(index for index, output in enumerate(node["outputs"]) if output["name"] == RESULT[1])
    last += 1
    kept.append({"id": last, "origin_id": node["id"], "origin_slot": place, "target_id": OUTPUT_NODE, "target_slot": 0, "type": "VIDEO"})
    results = [[link["id"], one, 0, link["target_id"], link["target_slot"], link["type"]] for link in links if link["id"] in node["outputs"][place]["links"]]
    node["outputs"][place]["links"] = [last]

    left, right = min(node["pos"][0] for node in inner), max(node["pos"][0] for node in inner)
    for node in inner:
        node["pos"] = [node["pos"][0] - left, node["pos"][1]]
    definition = {
        "id": identifier(), "version": 1, "state": {"lastGroupId": 0, "lastNodeId": one, "lastLinkId": last, "lastRerouteId": 0}, "revision": 0,
        "config": {}, "name": TITLE, "inputNode": {"id": INPUT_NODE, "bounding": [-260, 300, 120, 160]},
        "outputNode": {"id": OUTPUT_NODE, "bounding": [right - left + COLUMN + 60, 300, 120, 60]}, "inputs": edges,
        "outputs": [{"id": identifier("output", "video"), "name": "video", "type": "VIDEO", "linkIds": [last]}], "widgets": [], "nodes": inner,
        "groups": [], "links": kept, "extra": {},
    }
    single = {
        "id": one, "type": definition["id"], "pos": [100 + COLUMN, 100], "size": [330, 260], "flags": {}, "order": 2, "mode": 0, "inputs": sockets,
        "outputs": [{"name": "video", "type": "VIDEO", "links": [link[0] for link in results]}], "title": TITLE,
        "properties": {"proxyWidgets": proxies}, "widgets_values": values,
    }
    for order, node in enumerate(outer):
        node["order"] = order if node["type"] != "SaveVideo" else 3
        if node["type"] == "SaveVideo":
            node["pos"] = [100 + 2 * COLUMN, 100]
    template = {
        "last_node_id": one, "last_link_id": last, "nodes": [*outer, single], "links": [*feeds, *results], "groups": [], "config": {}, "extra": {},
        "version": 0.4, "definitions": {"subgraphs": [definition]},
    }
    alone = {**single, "pos": [0, 0], "order": 0, "inputs": [{**socket, "link": None} for socket in sockets],
             "outputs": [{**output, "links": []} for output in single["outputs"]]}
    blueprint = {**template, "nodes": [alone], "links": [], "extra": {"BlueprintDescription": DESCRIPTION}}
    return json.loads(json.dumps(template)), json.loads(json.dumps(blueprint))


def forms(object_info: dict) -> dict[Path, dict]:
    """{file: what belongs in it}."""
    graph = json.loads((ROOT / "examples" / "api" / "lipsync.json").read_text(encoding="utf-8"))
    template, blueprint = folded(graph, object_info)
    return {
        ROOT / "examples" / "lipsync.json": ui_form(graph, object_info),
        ROOT / "examples" / "lip-sync-a-video.json": template,
        ROOT / "subgraphs" / f"{TITLE}.json": blueprint,
    }


def main() -> None:
    with tempfile.TemporaryDirectory() as base, Server(Path(base)) as server, urllib.request.urlopen(f"{server.url}/object_info") as answer:
        object_info = json.load(answer)
    for target, content in forms(object_info).items():
        target.parent.mkdir(exist_ok=True)
        target.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
