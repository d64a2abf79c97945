// In Load Engine and Build Engine: what will run the network here and why, and a button that builds an engine through the queue.
import { app } from "../../scripts/app.js";
import { api } from "../../scripts/api.js";
import { addPanel, after, ask, element, grow, onChange, settled, upstream, valueOf } from "./panel.js";

const CHOICES = ["back_end", "engine_file", "precision"];

export function engineStatus(node) {
  const lines = element("dl"), note = element("div", { className: "note" }), button = element("button", { type: "button", textContent: "Build", disabled: true });
  const content = element("div", { className: "latentsync" }, lines, note, button);
  const builder = node.comfyClass === "LatentSyncEngineBuild";
  let status = null, building = null, height = 150;

  const say = (text, failed = false) => {
    note.textContent = text;
    note.classList.toggle("failed", failed);
    note.hidden = !text;
    fit();
  };
  const fit = () => {
    const needed = [lines, note, button].reduce((sum, part) => sum + (part.hidden ? 0 : part.offsetHeight + 5), 8);
    if (needed === height || !lines.offsetHeight) return;
    height = needed;
    grow(node);
  };
  const refresh = settled(async () => {
    const query = Object.fromEntries(CHOICES.map((name) => [name, valueOf(node, name)]).filter(([, value]) => value !== undefined));
    const model = upstream(node, "model");
    const checkpoint = model && valueOf(model, "checkpoint");
    if (checkpoint) query.checkpoint = checkpoint;
    try {
      status = await ask("status", query);
      show();
    } catch (error) {
      say(error.message, true);
    }
  });
  const show = () => {
    const rows = Object.entries(status.lines).flatMap(([what, words]) =>
      what.startsWith("why") ? [element("dd", { className: "wide", textContent: `${what}: ${words}` })] : [element("dt", { textContent: what }), element("dd", { textContent: words })]);
    lines.replaceChildren(...rows);
    label();
    fit();
  };
  const label = () => {
    const forGpu = status?.can_build_for_gpu;
    button.textContent = building ? "Cancel the build" : forGpu || !builder ? "Build for this GPU" : "Build now";
    button.disabled = !building && (!upstream(node, "model") || (!builder && !forGpu));
    button.title = button.disabled ? (upstream(node, "model") ? status?.why_not_build ?? "" : "Connect a model first.") : "Goes through the queue; nothing else of the graph runs.";
  };
  const finish = (text, failed) => {
    building = null;
    label();
    say(text, failed);
    refresh();
    if (!failed) app.refreshComboInNodes?.();
  };
  button.addEventListener("click", async () => {
    if (building) return cancel(building);
    try {
      building = await queueBuild(node, status);
      label();
      say("The build is in the queue.");
    } catch (error) {
      finish(error.message, true);
    }
  });
  const listen = (kind, then) => {
    const heard = ({ detail }) => { if (building && detail?.prompt_id === building) then(detail); };
    api.addEventListener(kind, heard);
    after(node, "onRemoved", () => api.removeEventListener(kind, heard));
  };
  listen("execution_success", () => finish("The engine is built.", false));
  listen("execution_error", (detail) => finish(String(detail.exception_message ?? "the build failed").trim(), true));
  listen("execution_interrupted", () => finish("The build was cancelled; nothing of it is left.", true));

  say("");
  new ResizeObserver(fit).observe(lines); // a node out of sight has no height until it comes into view
  addPanel(node, "latentsync_status", content, () => height);
  onChange(node, refresh);
  after(node, "onConfigure", refresh);
  after(node, "onExecuted", refresh);
  refresh();
}

/** The values with which the editor would make a node of that class. */
function defaults(kind) {
  const { required = {}, optional = {} } = LiteGraph.registered_node_types[kind].nodeData.input;
  const known = Object.entries({ ...required, ...optional }).map(([name, [, options]]) => [name, options?.default]);
  return Object.fromEntries(known.filter(([, value]) => value !== undefined));
}

async function cancel(promptId) {
  const post = (route, body) => api.fetchApi(route, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
  await post("/queue", { delete: [promptId] });
  await post("/interrupt", { prompt_id: promptId });
}

/** Queues a prompt with nothing but the build and what leads to its model. -> its id. The build runs under the id of the node that was clicked,
 * so that progress is shown there. */
async function queueBuild(node, status) {
  const { output, workflow } = await app.graphToPrompt();
  const key = Object.keys(output).find((one) => one.split(":").at(-1) === String(node.id) && output[one].class_type === node.comfyClass);
  if (!key) throw new Error("this node is muted or bypassed: enable it first.");
  const build = structuredClone(output[key]);
  if (build.class_type !== "LatentSyncEngineBuild") {
    build.class_type = "LatentSyncEngineBuild";
    build.inputs = { ...defaults(build.class_type), model: build.inputs.model, resolution: String(status.resolution) };
  }
  if (status.can_build_for_gpu) build.inputs.targets = "this GPU";
  const prompt = {}, take = (id, content) => {
    prompt[id] = content;
    for (const value of Object.values(content.inputs)) if (Array.isArray(value) && output[value[0]] && !prompt[value[0]]) take(value[0], output[value[0]]);
  };
  take(key, build);
  const answer = await api.fetchApi("/prompt", {
    method: "POST", headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ client_id: api.clientId ?? api.initialClientId, prompt, extra_data: { extra_pnginfo: { workflow } } }),
  });
  const content = await answer.json();
  const wrong = Object.values(content.node_errors ?? {}).flatMap((one) => one.errors ?? []).map((one) => `${one.message}: ${one.details}`);
  if (!answer.ok || wrong.length) throw new Error(wrong.join("; ") || content.error?.message || `the server answered ${answer.status}`);
  return content.prompt_id;
}
