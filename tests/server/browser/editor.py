"""ComfyUI's editor in a page: loads workflows as a user does, queues them, looks at nodes."""
from pathlib import Path

import requests

ROOT = Path(__file__).resolve().parents[3]
SHOTS = ROOT / "build" / "screenshots"
SECONDS = 120  # for anything that a page waits for
RENDERERS = ["canvas", "nodes2"]  # how nodes are shown: drawn, or as elements of the page ("Nodes 2.0")
# What a first visit would put over the graph.
SETTINGS = {
    "Comfy.TutorialCompleted": True,
    "Comfy.InstalledVersion": "1.32.9",
    "Comfy.Release.Status": "skipped",
    "Comfy.Workflow.ShowMissingNodesWarning": True,
    "Comfy.Workflow.Persist": False,
}


class Editor:
    """page: Playwright's. nodes_2: in "Nodes 2.0", where nodes are elements of the page; else they are drawn on a canvas.
    errors: what the page reported against our own files, and exceptions nobody caught."""

    def __init__(self, page, url: str, nodes_2: bool = False):
        self.page, self.url, self.nodes_2, self.errors = page, url, nodes_2, []
        page.set_default_timeout(SECONDS * 1000)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", self._hear)
        for name, value in {**SETTINGS, "Comfy.VueNodes.Enabled": nodes_2}.items():
            requests.post(f"{url}/settings/{name}", json=value, timeout=30).raise_for_status()

    def _hear(self, message) -> None:
        ours = "extensions/latentsync" in f"{message.text} {message.location}"
        if message.type == "error" and ours:
            self.errors.append(message.text)

    def open(self, query: str = "") -> "Editor":
        """The page, once its graph can be worked on. query: such as "?template=...&source=..."."""
        self.page.goto(f"{self.url}/{query}")
        self.page.wait_for_function("window.app && window.app.graph && window.app.extensionManager && !document.querySelector('#splash-loader')")
        return self

    def version(self) -> tuple[int, ...]:
        """Of the frontend."""
        return tuple(int(part) for part in self.page.evaluate("window.__COMFYUI_FRONTEND_VERSION__").split("."))

    def load(self, workflow: dict) -> None:
        self.page.evaluate("workflow => app.loadGraphData(workflow)", workflow)

    def set(self, kind: str | None, **values) -> None:
        """Widgets of every node of that class (None: of any), also in subgraphs."""
        self.page.evaluate(
            """([kind, values]) => {
                const visit = graph => graph.nodes.forEach(node => {
                    if (node.subgraph) visit(node.subgraph);
                    if (kind && node.type !== kind) return;
                    for (const widget of node.widgets ?? []) if (widget.name in values) {
                        const before = widget.value;
                        widget.value = values[widget.name];
                        widget.callback?.(widget.value);
                        node.onWidgetChanged?.(widget.name, widget.value, before, widget);
                    }
                });
                visit(app.graph);
            }""",
            [kind, values],
        )

    def run(self) -> None:
        """Click on the button that queues the graph. It is in the element of that name, or is it."""
        self.page.locator("[data-testid=queue-button]").locator("xpath=descendant-or-self::button").first.click()

    def enter_subgraph(self) -> None:
        """Look into the one subgraph."""
        self.page.evaluate("(node => app.canvas.openSubgraph(node.subgraph, node))(app.graph.nodes.find(one => one.subgraph))")
        self.settle()

    def values(self, kind: str, *names: str) -> list:
        return self.page.evaluate(
            "([kind, names]) => names.map(name => app.graph.nodes.find(one => one.type === kind).widgets.find(one => one.name === name).value)", [kind, names]
        )

    def problems(self) -> list[str]:
        """Nodes that are not known, marked, or wired to a socket that is not there or is of another kind; in subgraphs too."""
        return self.page.evaluate(
            """() => {
                const found = [];
                const visit = graph => {
                    for (const node of graph.nodes) {
                        if (node.subgraph) visit(node.subgraph);
                        else if (!LiteGraph.registered_node_types[node.type]) found.push(`unknown ${node.type}`);
                        if (node.has_errors) found.push(`marked ${node.type}`);
                    }
                    for (const link of graph.links.values ? graph.links.values() : Object.values(graph.links)) {
                        const from = link.origin_id < 0 ? graph.inputs[link.origin_slot] : graph.getNodeById(link.origin_id)?.outputs[link.origin_slot];
                        const to = link.target_id < 0 ? graph.outputs[link.target_slot] : graph.getNodeById(link.target_id)?.inputs[link.target_slot];
                        if (!from || !to || !LiteGraph.isValidConnection(from.type, to.type)) found.push(`link ${link.id}: ${from?.type} to ${to?.name}`);
                        if (link.target_id >= 0 && to && to.link !== link.id) found.push(`link ${link.id} does not arrive at ${to.name}`);
                    }
                };
                visit(app.graph);
                return found;
            }"""
        )

    def focus(self, kind: str, zoom: float = 0.9) -> None:
        """Bring the node of that class, of the graph in view, to the left top of the page."""
        self.page.evaluate(
            """([kind, zoom]) => {
                const node = app.canvas.graph.nodes.find(one => one.type === kind), view = app.canvas.ds;
                view.scale = zoom;
                view.offset = [-node.pos[0] + 140 / zoom, -node.pos[1] + 160 / zoom];
                app.canvas.setDirty(true, true);
            }""",
            [kind, zoom],
        )
        self.settle()

    def node(self, kind: str):
        """The element of the node of that class, in "Nodes 2.0"."""
        return self.page.locator(f"[data-node-id='{self.page.evaluate('kind => app.canvas.graph.nodes.find(one => one.type === kind).id', kind)}']")

    def pictures(self, kind: str) -> list[str]:
        """Addresses of the pictures that the node of that class shows."""
        if self.nodes_2:
            return self.node(kind).locator("img").evaluate_all("all => all.map(one => one.src)")
        return self.page.evaluate("kind => (app.canvas.graph.nodes.find(one => one.type === kind).imgs ?? []).map(one => one.src)", kind)

    def click(self, place, x: float, y: float = 0.4) -> None:
        """Click at a share of the width and height of an element."""
        area = place.bounding_box()
        self.page.mouse.click(area["x"] + x * area["width"], area["y"] + y * area["height"])

    def listen(self) -> None:
        """Keep what the server tells the page from now on."""
        kinds = ["execution_success", "execution_error", "execution_interrupted", "executed", "progress_text", "b_preview_with_metadata"]
        self.page.evaluate(
            """kinds => {
                window.heard = [];
                for (const kind of kinds)
                    window.comfyAPI.api.api.addEventListener(kind, ({ detail }) => window.heard.push([kind, { ...detail, blob: undefined }]));
            }""",
            kinds,
        )

    def heard(self, kind: str) -> list[dict]:
        return [data for one, data in self.page.evaluate("heard") if one == kind]

    def ended(self) -> str:
        """Wait for the end of the prompt -> how it ended."""
        self.page.wait_for_function("heard.some(([kind]) => /^execution_(success|error|interrupted)$/.test(kind))")
        return self.page.evaluate("heard.find(([kind]) => /^execution_(success|error|interrupted)$/.test(kind))[0]")

    def settle(self, seconds: float = 0.4) -> None:
        """Give the page time to draw."""
        self.page.wait_for_timeout(seconds * 1000)

    def shot(self, name: str, **options) -> Path:
        """build/screenshots/<name>.png, to look at."""
        SHOTS.mkdir(parents=True, exist_ok=True)
        path = SHOTS / f"{name}.png"
        self.page.screenshot(path=path, **options)
        return path
