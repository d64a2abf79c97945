// In Align Face: the track along the clip, a scrubber, and a frame in which a click picks the face to follow.
import { MARGIN, addPanel, after, ask, element, endLivePreview, grow, onChange, setValue, settled, upstream, valueOf } from "./panel.js";

const FOUND = "#46b95f", LOST = "#e14b41", CUT = "#facd46", RUN = "#ebebeb", IDLE = "#3a3d44", PICK = "#5aa2ff";
const STRIP = 34, TEXT = 50, BAR = 12; // heights: of the strip with its marks, of the caption, and of the coloured bar in the strip
const HINT = "Drag along the bar to look at the clip; click a face to follow it.";

export function facePicker(node) {
  const view = element("canvas", { className: "view", hidden: true, title: "Click a face to follow it" });
  const strip = element("canvas", { className: "strip", title: "The clip from start to end: green where the face was found, red where not" });
  const caption = element("div", { className: "caption", textContent: HINT });
  const content = element("div", { className: "latentsync" }, view, strip, caption);
  let track = null, shot = null, seconds = 0, wanted = null, busy = false, part = 0;

  const length = () => (track ? track.frames / track.rate : shot?.duration ?? 0);
  const height = () => STRIP + TEXT + 18 + (view.hidden ? 0 : Math.round(((node.size[0] - 2 * MARGIN - 12) * view.height) / view.width) + 5);
  const source = () => {
    const loader = upstream(node, "clip");
    const widget = loader?.widgets?.find((one) => ["file", "video"].includes(one.name) && typeof one.value === "string");
    return widget ? valueOf(loader, widget.name) : null;
  };
  const say = (text, failed = false) => {
    caption.textContent = text;
    caption.classList.toggle("failed", failed);
  };

  const look = async (at) => {
    wanted = at;
    if (busy) return; // the newest wish is looked at when the present one is done
    busy = true;
    while (wanted !== null) {
      const next = wanted;
      wanted = null;
      const name = source();
      if (!name) {
        say("Connect a Load Video node to look at its clip here.", true);
        break;
      }
      try {
        const query = { name, seconds: next, ...Object.fromEntries(["work_rate", "detector", "min_score", "min_size"].map((one) => [one, valueOf(node, one)])) };
        const seen = await ask("look", query);
        seen.image = await picture(seen.picture);
        shot = seen;
        seconds = seen.seconds;
        const number = seen.faces.length;
        say(`${seconds.toFixed(2)} s of ${seen.duration.toFixed(2)} s: ${number === 0 ? "no face that counts" : number === 1 ? "one face" : `${number} faces, click one`}`);
      } catch (error) {
        say(error.message, true);
      }
      draw();
    }
    busy = false;
  };

  const draw = () => {
    drawStrip();
    if (!shot) return;
    const opened = view.hidden || view.width !== shot.image.width || view.height !== shot.image.height;
    view.hidden = false;
    view.width = shot.image.width;
    view.height = shot.image.height;
    const pen = view.getContext("2d");
    pen.drawImage(shot.image, 0, 0);
    pen.lineWidth = Math.max(2, view.width / 200);
    pen.font = `${Math.max(14, view.width / 28)}px sans-serif`;
    shot.faces.forEach(({ box }, number) => {
      pen.strokeStyle = pen.fillStyle = isPicked(number) ? PICK : RUN;
      const [x0, y0, x1, y1] = scaled(box);
      pen.strokeRect(x0, y0, x1 - x0, y1 - y0);
      pen.fillText(String(number), x0 + 4, y0 - 5 > 14 ? y0 - 5 : y0 + 16);
    });
    const followed = followedBox();
    if (followed) {
      pen.setLineDash([6, 4]);
      pen.strokeStyle = FOUND;
      const [x0, y0, x1, y1] = scaled(followed);
      pen.strokeRect(x0 - 4, y0 - 4, x1 - x0 + 8, y1 - y0 + 8);
      pen.setLineDash([]);
    }
    if (opened) grow(node);
  };
  const scaled = (box) => box.map((place, axis) => place * (axis % 2 ? view.height : view.width));
  const isPicked = (number) => valueOf(node, "face") === "index" && Number(valueOf(node, "face_index")) === number && Math.abs(Number(valueOf(node, "face_time")) - seconds) < 0.02;
  const followedBox = () => {
    if (!track?.boxes.length) return null;
    const frame = Math.round(seconds * track.rate);
    if (track.gaps.some(([first, last]) => first <= frame && frame <= last)) return null;
    return track.boxes.reduce((best, one) => (Math.abs(one[0] - frame) < Math.abs(best[0] - frame) ? one : best)).slice(1);
  };

  const drawStrip = () => {
    const wide = Math.max(200, Math.round((strip.clientWidth || node.size[0] - 32) * 2));
    strip.width = wide;
    strip.height = STRIP * 2;
    const pen = strip.getContext("2d"), top = 8, tall = BAR * 2;
    const x = (frame) => (frame / track.frames) * wide;
    pen.fillStyle = track ? FOUND : IDLE;
    pen.fillRect(0, top, wide, tall);
    if (track) {
      pen.fillStyle = LOST;
      for (const [first, last] of track.gaps) pen.fillRect(x(first), top, Math.max(3, x(last + 1) - x(first)), tall);
      pen.fillStyle = RUN;
      for (const frame of track.runs) pen.fillRect(x(frame), top + tall - 8, 3, 8);
      pen.fillStyle = CUT;
      for (const frame of track.cuts) pen.fillRect(x(frame) - 1, top - 6, 4, tall + 6);
    }
    const total = length();
    pen.fillStyle = "#aaa";
    pen.font = "18px sans-serif";
    if (total) for (let tick = 0; tick <= 4; tick++) {
      const text = `${((total * tick) / 4).toFixed(total < 10 ? 1 : 0)} s`, width = pen.measureText(text).width;
      pen.fillText(text, Math.min(wide - width, Math.max(0, (wide * tick) / 4 - width / 2)), top + tall + 22);
    }
    if (!total) return;
    const place = (time) => Math.min(1, time / total) * wide;
    if (valueOf(node, "face") === "index") triangle(pen, place(Number(valueOf(node, "face_time")) || 0), top + tall + 2);
    if (shot) {
      pen.fillStyle = "#fff";
      pen.fillRect(Math.min(wide - 4, place(seconds)), 0, 4, top + tall + 4);
    }
  };

  const pointed = () => Math.min(part * length(), length() - 1e-3);
  const scrub = (event) => {
    const area = strip.getBoundingClientRect();
    part = Math.min(1, Math.max(0, (event.clientX - area.left) / area.width));
    if (length()) look(pointed());
    else if (!busy) look(0).then(() => length() && look(pointed())); // now it is known how long the clip is, and where the pointer went meanwhile
  };
  strip.addEventListener("pointerdown", (event) => {
    strip.setPointerCapture(event.pointerId);
    scrub(event);
    event.stopPropagation();
  });
  strip.addEventListener("pointermove", (event) => { if (event.buttons & 1) scrub(event); });
  view.addEventListener("pointerdown", (event) => event.stopPropagation());
  view.addEventListener("click", (event) => {
    const area = view.getBoundingClientRect(), x = (event.clientX - area.left) / area.width, y = (event.clientY - area.top) / area.height;
    const number = shot?.faces.findIndex(({ box: [x0, y0, x1, y1] }) => x0 <= x && x <= x1 && y0 <= y && y <= y1) ?? -1;
    if (number < 0) return;
    setValue(node, "face", "index");
    setValue(node, "face_index", number);
    setValue(node, "face_time", Math.round(seconds * 1000) / 1000);
    say(`Face ${number} at ${seconds.toFixed(2)} s will be followed.`);
    draw();
  });

  const again = settled(() => (shot ? look(seconds) : drawStrip()));
  let known = null;
  onChange(node, (what) => {
    if (what.startsWith("face")) return draw();
    if (what !== "wire") return again();
    const name = source();
    if (name !== known) {
      track = shot = null;
      view.hidden = true;
      known = name;
    }
    drawStrip();
  });
  after(node, "onExecuted", (output) => {
    const told = output?.latentsync_track?.[0];
    if (!told) return;
    endLivePreview(node);
    track = told;
    say(told.summary);
    draw();
  });
  after(node, "onResize", settled(drawStrip, 50));
  addPanel(node, "latentsync_track", content, height);
  setTimeout(drawStrip, 100);
}

function picture(url) {
  return new Promise((resolve, reject) => {
    const image = new Image();
    image.onload = () => resolve(image);
    image.onerror = () => reject(new Error("the server's picture cannot be shown"));
    image.src = url;
  });
}

function triangle(pen, x, y) {
  pen.fillStyle = PICK;
  pen.beginPath();
  pen.moveTo(x, y);
  pen.lineTo(x - 8, y + 14);
  pen.lineTo(x + 8, y + 14);
  pen.fill();
}
