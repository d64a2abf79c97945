"""The README keeps its word: files it names are there, commands it names exist, errors it explains are raised, sizes are the download's."""
import re
from pathlib import Path

import pytest
from latentsync_rtx import commands
from latentsync_rtx.lipsync import download, errors
from latentsync_rtx.lipsync.spool import size_text

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))])
def test_every_link_and_picture_is_there(name):
    path = ROOT / name
    targets = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8"))
    assert [target for target in targets if not target.startswith("http") and not (path.parent / target).exists()] == []


def test_every_command_is_listed_and_exists():
    section = README.split("## From the shell")[1].split("\n## ")[0]
    assert set(re.findall(r"^\| `([\w-]+)` \|", section, re.M)) == set(commands.COMMANDS)


def test_files_are_listed_with_their_source_and_size():
    for remote in (download.CHECKPOINTS[download.DEFAULT_CHECKPOINT], download.WHISPER, download.VAE):
        row = next(line for line in README.splitlines() if line.startswith("|") and Path(remote.name).name in line)
        assert size_text(remote.size) in row
        assert remote.repo in README


def test_every_kind_of_error_is_explained_in_words_that_are_raised():
    code = "\n".join(path.read_text(encoding="utf-8") for folder in ("lipsync", "engine_builder", "nodes") for path in (ROOT / folder).rglob("*.py"))
    code = re.sub(r"""["']\s*\n\s*f?["']""", "", code)
    rows = re.findall(r"^\| (\w+Error) (.*?) \| ", README, re.M)
    kinds = {name for name, kind in vars(errors).items() if isinstance(kind, type)} - {"LatentSyncError"}
    assert {kind for kind, _ in rows} == kinds
    pieces = [piece.strip(" ,") for _, cell in rows for message in re.findall(r"`([^`]+)`", cell) for piece in message.split("...")]
    assert [piece for piece in pieces if piece and piece not in code] == []
