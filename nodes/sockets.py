"""The pack's own socket types; `design.md` says what each carries."""
from comfy_api.latest import io

Model = io.Custom("LATENTSYNC_MODEL")
Engine = io.Custom("LATENTSYNC_ENGINE")
Runner = io.Custom("LATENTSYNC_RUNNER")
Faces = io.Custom("LATENTSYNC_FACES")
Audio = io.Custom("LATENTSYNC_AUDIO")
Crops = io.Custom("LATENTSYNC_CROPS")

CATEGORY = "LatentSync"


def advanced(entry: io.Input) -> io.Input:
    """An input that most people leave alone: ComfyUI shows it after "Show Advanced" in the node's menu. Its place among the values that a
    workflow saves stays the same."""
    entry.extra_dict = {**entry.extra_dict, "advanced": True}  # 0.3.75 knows the key in the front end, later releases as an argument too
    return entry


def known_choices(node: type[io.ComfyNode], **values) -> bool | str:
    """For a node's `validate_inputs`: True, or which of `values` (input -> value; None when it comes by a wire) its list does not have.
    ComfyUI 0.3.75 does not hold a V3 node's choices against their lists."""
    for entry in node.define_schema().inputs:
        value = values.get(entry.id)
        if value is not None and value not in entry.options:
            return f"{entry.id} is {value!r}, which is none of: {', '.join(map(str, entry.options))}"
    return True


def search_aliases(*names: str) -> dict:
    """Further words that a node is found by, as an argument of `io.Schema` where ComfyUI knows it (0.3.75 does not)."""
    return {"search_aliases": list(names)} if "search_aliases" in io.Schema.__dataclass_fields__ else {}
