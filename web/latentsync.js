// Registers what our nodes show besides their widgets.
import { app } from "../../scripts/app.js";
import { engineStatus } from "./engine.js";
import { facePicker } from "./faces.js";
import { loadStyle } from "./panel.js";

const PANELS = { LatentSyncEngineLoad: engineStatus, LatentSyncEngineBuild: engineStatus, LatentSyncFaceAlign: facePicker };

/** The editor hands the mark "advanced" of an input to the nodes of "Nodes 2.0" only; those drawn on the canvas look for it on the widget. */
function hideAdvanced(node) {
  for (const widget of node.widgets ?? []) {
    if (!widget.options?.advanced) continue;
    widget.advanced = true;
    widget.computeSize = (width) => (node.showAdvanced ? [width, LiteGraph.NODE_WIDGET_HEIGHT] : [0, -4]); // else it leaves a gap; -4: of the spacing
  }
}

app.registerExtension({
  name: "latentsync-rtx",
  setup: loadStyle,
  nodeCreated(node) {
    if (node.comfyClass?.startsWith("LatentSync")) hideAdvanced(node);
    if (node.comfyClass === "LatentSyncRestore") node.previewMediaType = "video"; // the first "Nodes 2.0" take what it shows for a picture
    PANELS[node.comfyClass]?.(node);
  },
});
