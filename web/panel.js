// What the panels in our nodes share: elements, the way up a wire, and the server's answers.
import { app } from "../../scripts/app.js";
import { api } from "../../scripts/api.js";

export const MARGIN = 10; // that the editor leaves around a panel, graph pixels
const SUBGRAPH_INPUT = -10; // the node id by which the editor knows the left edge of a subgraph

export function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

export function loadStyle() {
  const href = new URL("./latentsync.css", import.meta.url).href;
  if (!document.querySelector(`link[href="${href}"]`)) document.head.append(element("link", { rel: "stylesheet", href }));
}

/** Adds a panel below the widgets of a node. height() gives the room it needs, in graph pixels; it is not saved with the workflow. */
export function addPanel(node, name, content, height) {
  const room = () => height() + 2 * MARGIN;
  const widget = node.addDOMWidget(name, "latentsync", content, {
    serialize: false, hideOnZoom: false, getValue: () => undefined, setValue: () => {}, getMinHeight: room, getMaxHeight: room,
  });
  widget.serialize = false;
  return widget;
}

/** Makes a node large enough for what is in it, never smaller than it is. */
export function grow(node) {
  const [width, height] = node.computeSize();
  node.setSize([Math.max(node.size[0], width), Math.max(node.size[1], height)]);
  node.setDirtyCanvas?.(true, true);
}

/** The link that arrives at an input. Ids are numbers in some editors, strings in others. */
function linkInto(node, slot) {
  for (const link of node?.graph?.links.values() ?? []) if (String(link.target_id) === String(node.id) && link.target_slot === slot) return link;
  return null;
}

/** The node of the root graph, or of a subgraph in it, that stands for `subgraph`. */
function standIn(subgraph, graph = app.graph) {
  for (const node of graph.nodes ?? graph._nodes ?? []) {
    if (!node.subgraph) continue;
    if (node.subgraph === subgraph) return node;
    const inner = standIn(subgraph, node.subgraph);
    if (inner) return inner;
  }
  return null;
}

/** The node whose output arrives at an input, through reroutes and out of subgraphs; null when nothing is connected. */
export function upstream(node, name) {
  let slot = node?.inputs?.findIndex((input) => input.name === name) ?? -1;
  while (node && slot >= 0) {
    const link = linkInto(node, slot);
    if (!link) return null;
    if (Number(link.origin_id) === SUBGRAPH_INPUT) {
      node = standIn(node.graph);
      slot = link.origin_slot;
      continue;
    }
    node = node.graph.getNodeById(link.origin_id);
    if (node?.type !== "Reroute") return node ?? null;
    slot = 0;
  }
  return null;
}

/** The widget whose value will be used: that on the outside, when it is shown on the node of a subgraph. */
function widgetOf(node, name) {
  const link = linkInto(node, node?.inputs?.findIndex((one) => one.widget?.name === name));
  if (Number(link?.origin_id) === SUBGRAPH_INPUT) {
    const outer = standIn(node.graph);
    return widgetOf(outer, outer?.inputs[link.origin_slot]?.name);
  }
  return node?.widgets?.find((widget) => widget.name === name);
}

export function valueOf(node, name) {
  return widgetOf(node, name)?.value;
}

export function setValue(node, name, value) {
  const widget = widgetOf(node, name);
  if (!widget) return;
  widget.value = value;
  widget.callback?.(value, app.canvas, node);
}

/** Calls `heard` whenever a widget or a wire of the node changes; what was there before is called first. */
export function onChange(node, heard) {
  for (const widget of node.widgets ?? []) {
    const before = widget.callback;
    widget.callback = function (...given) {
      const result = before?.apply(this, given);
      heard(widget.name);
      return result;
    };
  }
  after(node, "onConnectionsChange", () => heard("wire"));
}

export function after(node, method, then) {
  const before = node[method];
  node[method] = function (...given) {
    const result = before?.apply(this, given);
    then.apply(this, given);
    return result;
  };
}

/** GET of one of our routes -> its JSON. Throws an Error with what the server says is wrong. */
export async function ask(route, query) {
  const answer = await api.fetchApi(`/latentsync-rtx/${route}?${new URLSearchParams(query)}`);
  const content = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error(content.error ?? `the server answered ${answer.status}`);
  return content;
}

/** A function that runs `work` a moment after the last of several calls. */
export function settled(work, milliseconds = 250) {
  let timer;
  return () => {
    clearTimeout(timer);
    timer = setTimeout(work, milliseconds);
  };
}

/** Drops the last picture of the work, which the editor would go on showing beside the result's or in its place. It has no call for that: the pictures
 * are in app.nodePreviewImages, and for newer editors and "Nodes 2.0" also in a Pinia store. */
export function endLivePreview(node) {
  const stores = document.getElementById("vue-app")?.__vue_app__?.config.globalProperties.$pinia?.state.value;
  for (const shown of [app.nodePreviewImages, stores?.nodeOutput?.nodePreviewImages])
    for (const key of Object.keys(shown ?? {})) if (key.split(":").at(-1) === String(node.id)) delete shown[key];
}
