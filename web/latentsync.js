// Registers what our nodes show besides their widgets.
import { app } from "../../scripts/app.js";
import { engineStatus } from "./engine.js";
import { facePicker } from "./faces.js";
import { loadStyle } from "./panel.js";

const PANELS = { LatentSyncEngineLoad: engineStatus, LatentSyncEngineBuild: engineStatus, LatentSyncFaceAlign: facePicker };

app.registerExtension({
  name: "latentsync-rtx",
  setup: loadStyle,
  nodeCreated(node) {
    PANELS[node.comfyClass]?.(node);
  },
});
