"""The help pages and the English words of the nodes, from the nodes' own schemas.

    python tools/help_pages.py            write web/docs/ and locales/en/nodeDefs.json again (`make help-pages`)
    python tools/help_pages.py check      only say what differs, with exit status 1

A page is made of three things, so that none is written twice: the schema (types, defaults, ranges), `locales/<language>/nodeDefs.json` (names
and tooltips; the English ones are the schema's), and `tools/help/<language>.md`, which has what only a person can write. ComfyUI serves
`web/docs/<node>.md`, and `web/docs/<node>/<language>.md` to those who read another language.
"""
import json
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

import comfyui

ROOT = Path(__file__).resolve().parent.parent
LANGUAGES = ("en", "zh", "ja")
DOCS, LOCALES, TEXTS = ROOT / "web" / "docs", ROOT / "locales", ROOT / "tools" / "help"
SPLIT = "\n---\n"  # in a text: what stands before it comes before the tables, the rest after them
# of the tables, in each language
WORDS = {
    "en": {"inputs": "Inputs", "outputs": "Outputs", "name": "name", "kind": "kind, default", "what": "what it does", "wire": "wire",
           "optional": "optional", "advanced": "advanced",
           "where": "Advanced inputs: right-click the node, Show Advanced.", "to": "to", "switch": "on or off", "text": "text",
           "files": "your files"},
    "zh": {"inputs": "输入", "outputs": "输出", "name": "名称", "kind": "类型与默认值", "what": "作用", "wire": "连线",
           "optional": "可不接", "advanced": "高级",
           "where": "高级输入：右键点击节点，选择 Show Advanced。", "to": "至", "switch": "开关", "text": "文字",
           "files": "本机的文件"},
    "ja": {"inputs": "入力", "outputs": "出力", "name": "名前", "kind": "種類と既定値", "what": "働き", "wire": "配線",
           "optional": "省略可", "advanced": "詳細",
           "where": "詳細項目：ノードを右クリックして Show Advanced を選びます。", "to": "～", "switch": "オン・オフ", "text": "文字",
           "files": "この PC のファイル"},
}

SCRIPT = """
import json, sys
sys.path.insert(0, sys.argv[1])
root, sys.argv = sys.argv[2], ["main.py", "--cpu"]
import utils.install_util  # as its main.py does first: later another module of that name is found
import comfy.options
comfy.options.enable_args_parsing()
sys.path.append(root + "/tests")
import conftest
from latentsync_rtx.lipsync import folders
from latentsync_rtx.nodes import STAGES
folders.register()
found = {}
for node in (node for stage in STAGES for node in stage.NODES):
    schema = node.GET_SCHEMA()
    found[schema.node_id] = {
        "display_name": schema.display_name, "category": schema.category, "description": schema.description,
        "inputs": [{"id": one.id, "type": str(one.get_io_type()), **one.as_dict()} for one in schema.inputs],
        "outputs": [{"type": str(one.get_io_type()), **one.as_dict()} for one in schema.outputs],
    }
sys.__stdout__.write("\\n" + json.dumps(found))
"""


@lru_cache(maxsize=1)
def schemas() -> dict[str, dict]:
    """Node id -> display_name, category, description, inputs and outputs in order, as the nodes tell ComfyUI (run in a process with it)."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(comfyui.get()), str(ROOT)], capture_output=True, text=True, check=False, cwd=ROOT / "tests", timeout=300
    )
    if done.returncode:
        raise comfyui.ComfyUIError(f"the nodes do not load:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def english() -> dict:
    """`locales/en/nodeDefs.json`: the schemas' own words."""
    return {
        node: {
            "display_name": schema["display_name"],
            "description": schema["description"],
            "inputs": {
                **{one["id"]: {"name": one["id"], "tooltip": one.get("tooltip", "")} for one in schema["inputs"]},
                **({"control_after_generate": {"name": "control after generate"}} if _has_control(schema) else {}),
            },
            "outputs": {str(i): {"name": one["display_name"], "tooltip": one.get("tooltip", "")} for i, one in enumerate(schema["outputs"])},
        }
        for node, schema in schemas().items()
    }


def words(language: str) -> dict:
    """The nodes' words in a language, as they are in the repository; English is always the schemas'."""
    return english() if language == "en" else json.loads((LOCALES / language / "nodeDefs.json").read_text(encoding="utf-8"))


def texts(language: str) -> dict[str, tuple[str, str]]:
    """Node id -> (before the tables, after them), from `tools/help/<language>.md`, where a line `# <node id>` begins each."""
    found = {}
    for part in ("\n" + (TEXTS / f"{language}.md").read_text(encoding="utf-8")).split("\n# ")[1:]:
        node, _, body = part.partition("\n")
        before, _, after = body.partition(SPLIT)
        found[node.strip()] = before.strip(), after.strip()
    return found


def page(node: str, language: str) -> str:
    """One help page, Markdown. Raises KeyError, naming it, when the language lacks a word or the node's text."""
    schema, told, (before, after) = schemas()[node], words(language)[node], texts(language)[node]
    word = WORDS[language]
    lines = [f"# {told['display_name']}", "", told["description"], "", f"![{told['display_name']}]({node}.png)", "", before, ""]
    lines += [f"## {word['inputs']}", "", f"| {word['name']} | {word['kind']} | {word['what']} |", "|---|---|---|"]
    for one in schema["inputs"]:
        name = told["inputs"][one["id"]]
        shown = one["id"] if name["name"] == one["id"] else f"{name['name']} (`{one['id']}`)"
        lines.append(_row(f"**{shown}**" if shown == one["id"] else shown, _kind(one, word), name["tooltip"]))
    if any(one.get("advanced") for one in schema["inputs"]):
        lines += ["", word["where"]]
    lines += ["", f"## {word['outputs']}", "", f"| {word['name']} | {word['kind'].split(',')[0]} | {word['what']} |", "|---|---|---|"]
    for index, one in enumerate(schema["outputs"]):
        name = told["outputs"][str(index)]
        lines.append(_row(f"**{name['name']}**", one["type"], name["tooltip"]))
    return "\n".join([*lines, "", after, ""])


def pages() -> dict[Path, str]:
    """Every file that this tool writes, with its contents."""
    made = {LOCALES / "en" / "nodeDefs.json": json.dumps(english(), indent=2, ensure_ascii=False) + "\n"}
    for node in schemas():
        made[DOCS / f"{node}.md"] = page(node, "en")
        for language in LANGUAGES[1:]:
            made[DOCS / node / f"{language}.md"] = page(node, language)
    return made


def gaps(language: str) -> list[str]:
    """What a language lacks, or has too much, measured on the schemas: 'LatentSyncDenoise.inputs.seed.tooltip' ..."""
    wanted, found = set(_leaves(english())), set(_leaves(words(language)))
    lacking = [f"{language} lacks {name}" for name in sorted(wanted - found)] + [f"{language} still has {name}" for name in sorted(found - wanted)]
    lacking += [f"tools/help/{language}.md lacks {node}" for node in schemas() if not all(texts(language).get(node, ()) or [""])]
    return lacking


def _leaves(tree: dict, path: str = ""):
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{path}{name}.")
        elif value.strip():
            yield path + name


def _has_control(schema: dict) -> bool:
    return any(one.get("control_after_generate") for one in schema["inputs"])


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _kind(one: dict, word: dict) -> str:
    """'INT, 1 to 100, default 20'."""
    kind, default = one["type"], one.get("default")
    if kind == "COMBO":
        dynamic = one["id"] in ("checkpoint", "vae", "engine_file")  # lists of files, others on each machine
        chosen = one["options"][0] if default is None and not dynamic else default
        parts = [f"`{chosen}`" if dynamic and chosen else word["files"] if dynamic else " · ".join(_choice(option, chosen) for option in one["options"])]
    elif kind == "BOOLEAN":
        parts = [word["switch"], "**on**" if default else "**off**"]
    elif kind in ("INT", "FLOAT"):
        most = one["max"] if one["max"] < 2**53 else "2⁶⁴-1"
        parts = [f"{one['min']} {word['to']} {most}", f"**{default:g}**"]
    elif kind == "STRING":
        parts = [word["text"], f"`{default}`"]
    else:
        parts = [f"{word['wire']} {kind.replace(',', ' / ')}"]
    parts += [word["optional"]] if one.get("optional") and kind.isupper() and default is None else []
    parts += [word["advanced"]] if one.get("advanced") else []
    return ", ".join(part for part in parts if part)


def _choice(option, default) -> str:
    return f"**{option}**" if option == default else str(option)


def main(arguments: list[str]) -> int:
    problems = [gap for language in LANGUAGES for gap in gaps(language)]
    if problems:
        print("\n".join(problems))
        return 1
    differing = [path for path, text in pages().items() if not path.is_file() or path.read_text(encoding="utf-8") != text]
    for path in differing:
        print(path.relative_to(ROOT))
        if arguments != ["check"]:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(pages()[path], encoding="utf-8")
    return 1 if differing and arguments == ["check"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
