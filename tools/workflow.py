"""`make workflows`: makes the UI form of each workflow in `examples/` from its API form, with the schemas of a real ComfyUI.

The API form is the one we edit.
"""
import json
import tempfile
import urllib.request
from pathlib import Path

from comfyui import ROOT, Server

COLUMN, ROW = 400, 60  # spacing in the graph, pixels
WIDGETS = ("INT", "FLOAT", "STRING", "BOOLEAN", "COMBO")


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
        for name, spec in inputs_of(info).items():
            value = node["inputs"].get(name)
            kind = "COMBO" if isinstance(spec[0], list) else spec[0]
            if isinstance(value, list):
                links.append([len(links) + 1, int(value[0]), value[1], int(key), len(sockets), object_info[graph[value[0]]["class_type"]]["output"][value[1]]])
                outgoing.setdefault((value[0], value[1]), []).append(len(links))
                sockets.append({"name": name, "type": kind, "link": len(links)})
            elif is_widget(spec):
                sockets.append({"name": name, "type": kind, "widget": {"name": name}, "link": None})
                values.append(value)
                options = spec[1] if len(spec) > 1 else {}
                if options.get("control_after_generate"):
                    values.append("fixed")
                if any(options.get(flag) for flag in ("image_upload", "video_upload")):
                    values.append("image")
            else:
                sockets.append({"name": name, "type": kind, "link": None})
        height = 60 + 26 * (len(sockets) + len(info["output"]))
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


def main() -> None:
    with tempfile.TemporaryDirectory() as base, Server(Path(base)) as server, urllib.request.urlopen(f"{server.url}/object_info") as answer:
        object_info = json.load(answer)
    for source in sorted((ROOT / "examples").glob("*.api.json")):
        target = source.with_name(source.name.replace(".api.json", ".json"))
        target.write_text(json.dumps(ui_form(json.loads(source.read_text()), object_info), indent=1) + "\n")


if __name__ == "__main__":
    main()
