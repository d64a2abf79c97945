"""What the nodes tell people: a word on every input and output, in every language, and help pages that say what the schemas say."""
import json
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tools"))

import help_pages  # noqa: E402 - ours, in tools/

pytestmark = pytest.mark.server  # needs ComfyUI's code, in a process of its own

REMEDY = "run `make help-pages`; words of other languages are in locales/ and tools/help/"
MESSAGE = re.compile(r"`([^`]+)`")


@pytest.fixture(scope="module")
def schemas():
    return help_pages.schemas()


@pytest.fixture(scope="module")
def source() -> str:
    """The text of every message of the pack: its code with strings that stand on several lines joined."""
    code = [path.read_text(encoding="utf-8") for folder in ("lipsync", "engine_builder", "nodes") for path in sorted((ROOT / folder).rglob("*.py"))]
    return re.sub(r"""["']\s*\n\s*f?["']""", "", "\n".join(code))


def test_every_input_and_output_has_a_tooltip(schemas):
    assert len(schemas) >= 10
    assert [f"{node}.{one['id']}" for node, schema in schemas.items() for one in schema["inputs"] if len(one.get("tooltip", "")) < 10] == []
    assert [f"{node} output {one['display_name']}" for node, schema in schemas.items() for one in schema["outputs"] if not one.get("tooltip")] == []


def test_every_widget_has_a_default_in_its_range(schemas):
    for node, schema in schemas.items():
        assert schema["description"] and schema["display_name"].startswith("LatentSync ") and schema["category"] == "LatentSync"
        for one in schema["inputs"]:
            what = f"{node}.{one['id']}"
            if one["type"] in ("INT", "FLOAT"):
                assert one["min"] <= one["default"] <= one["max"], what
            elif one["type"] == "COMBO":
                assert one["options"], what
                assert one.get("default", one["options"][0]) in one["options"], what
            elif one["type"] in ("BOOLEAN", "STRING"):
                assert one.get("default") is not None, what


def test_the_licence_is_told_where_insightface_is_chosen(schemas):
    (detector,) = (one for one in schemas["LatentSyncFaceAlign"]["inputs"] if one["id"] == "detector")
    assert "non-commercial" in detector["tooltip"]


def test_what_few_people_change_is_advanced_and_what_all_need_is_not(schemas):
    advanced = {f"{node}.{one['id']}" for node, schema in schemas.items() for one in schema["inputs"] if one.get("advanced")}
    assert {"LatentSyncFaceAlign.min_score", "LatentSyncRestore.encoder", "LatentSyncDenoise.silence_db"} <= advanced
    assert not {"LatentSyncDenoise.seed", "LatentSyncDenoise.steps", "LatentSyncModelLoad.checkpoint", "LatentSyncRestore.output"} & advanced


@pytest.mark.parametrize("language", help_pages.LANGUAGES)
def test_a_language_has_every_word_and_none_too_many(language):
    assert help_pages.gaps(language) == [], REMEDY
    main = json.loads((help_pages.LOCALES / language / "main.json").read_text(encoding="utf-8"))
    sockets = re.findall(r'io\.Custom\("(\w+)"\)', (ROOT / "nodes" / "sockets.py").read_text(encoding="utf-8"))
    assert set(main["dataTypes"]) == set(sockets) and all(main["nodeCategories"].values())


@pytest.mark.parametrize("language", ["zh", "ja"])
def test_other_languages_are_translated_and_keep_what_must_not_be(language):
    """Sentences are in the language's own letters; names of files, choices and numbers stand as in English."""
    english, told = help_pages.english(), help_pages.words(language)
    for node, entry in english.items():
        for name, one in entry["inputs"].items():
            other = told[node]["inputs"][name]
            assert re.search(r"[\u3040-\u30ff\u4e00-\u9fff]", other.get("tooltip", other["name"])), f"{language} {node}.{name}"
            choices = set(re.findall(r"'([\w -]+)'", one.get("tooltip", "")))
            assert choices <= set(re.findall(r"'([\w -]+)'", other.get("tooltip", ""))), f"{language} {node}.{name}"


def test_help_pages_and_english_words_are_those_of_the_schemas():
    made = help_pages.pages()
    stale = [str(path.relative_to(ROOT)) for path, text in made.items() if not path.is_file() or path.read_text(encoding="utf-8") != text]
    assert stale == [], REMEDY
    assert {path for path in help_pages.DOCS.rglob("*.md")} == {path for path in made if path.suffix == ".md"}


@pytest.mark.parametrize("language", help_pages.LANGUAGES)
def test_every_page_describes_every_input_and_is_of_its_own(language, schemas):
    for node, schema in schemas.items():
        text = help_pages.page(node, language)
        rows = [line for line in text.splitlines() if line.startswith("|")]
        for one in schema["inputs"]:
            assert any(f"**{one['id']}**" in row or f"`{one['id']}`" in row for row in rows), f"{language} {node}.{one['id']}"
        before, after = help_pages.texts(language)[node]
        assert len(before) > 25 and after.count("\n|") >= 3, f"{language} {node}"


@pytest.mark.parametrize("language", help_pages.LANGUAGES)
def test_messages_that_the_pages_explain_are_messages_that_exist(language, source):
    strange = []
    for node, (_, after) in help_pages.texts(language).items():
        for row in (line for line in after.splitlines() if line.startswith("| `")):
            for message in MESSAGE.findall(row.split(" | ")[0]):
                pieces = [piece.strip() for piece in message.split("...") if len(piece.strip()) > 3]
                strange += [f"{node}: {piece}" for piece in pieces if piece not in source]
    assert strange == []
