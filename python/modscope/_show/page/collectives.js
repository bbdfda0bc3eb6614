/* collectives.js - the lane of collectives below the timeline: a row for each kind, and in it a bar for each
 * collective, where it began, as wide as it took and as high as its bytes, in the colour of its phase. */

const COLLECTIVE_ROW = 18; /* height of a row in pixels */
const COLLECTIVE_REACH = 3; /* how many pixels beside a bar still point at it */
const COLLECTIVES_IN_TIP = 5;
/* What the time of a collective is, after "takes 3 ms". */
const COLLECTIVE_TIMINGS = { waited: " until the wait for it returns", on_gpu: " on the GPU" };

class CollectiveLane {
  constructor(box) {
    this.box = box;
    this.canvas = box.querySelector("canvas");
    this.data = null;
  }

  show(capture) {
    this.capture = capture;
    this.data = capture.metadata.collectives;
    this.box.hidden = !this.data;
    if (!this.data) return;
    const { kinds, bytes, kind } = this.data;
    this.most = kinds.map((_, i) =>
      bytes.reduce((most, each, at) => (kind[at] === i ? Math.max(most, each) : most), 0));
    this.canvas.style.height = `${kinds.length * COLLECTIVE_ROW}px`;
    Object.assign(this.box.dataset, { count: bytes.length, kinds: kinds.join(" ") });
    const rest = this.data.left_out ? ` ${this.data.left_out.toLocaleString("en")} later ones are left out.` : "";
    find("collectives-text").textContent =
      `Collectives: ${kinds.map((name, i) => this.describeKind(name, i)).join(", ")}.${rest}`;
    this.canvas.setAttribute("aria-label", find("collectives-text").textContent);
  }

  describeKind(name, i) {
    const { bytes, kind } = this.data;
    const own = bytes.filter((_, at) => kind[at] === i);
    const total = own.reduce((sum, each) => sum + each, 0);
    return `${own.length.toLocaleString("en")} × ${name}${total ? ` (${size(total)})` : ""}`;
  }

  /* The left and the right end of a bar. By event, a collective is where the next event is. */
  ends(timeline, i) {
    const { time, nanoseconds, event } = this.data;
    const byTime = timeline.axis === "time";
    const begin = timeline.x(byTime ? time[i] : this.capture.tickOf(event[i]));
    const end = byTime ? timeline.x(time[i] + nanoseconds[i] / 1000) : begin;
    return [begin, Math.max(end, begin + 1.5)];
  }

  draw(theme, timeline) {
    if (!this.data) return;
    const { kinds, bytes, kind, phase } = this.data;
    const { context } = prepareCanvas(this.canvas);
    this.timeline = timeline;
    context.font = `11px ${theme.font}`;
    context.textBaseline = "middle";
    context.textAlign = "right";
    kinds.forEach((name, row) => {
      context.fillStyle = theme.panel;
      context.fillRect(timeline.left, row * COLLECTIVE_ROW + 1, timeline.right - timeline.left, COLLECTIVE_ROW - 2);
      context.fillStyle = theme.soft;
      context.fillText(name.replaceAll("_", " "), timeline.axisLeft - 4, (row + 0.5) * COLLECTIVE_ROW,
        timeline.axisLeft - 6);
    });
    context.save();
    context.beginPath();
    context.rect(timeline.left, 0, timeline.right - timeline.left, kinds.length * COLLECTIVE_ROW);
    context.clip();
    let drawn = 0;
    for (let i = 0; i < bytes.length; i++) {
      const [begin, end] = this.ends(timeline, i);
      if (end < timeline.left || begin > timeline.right) continue;
      const height = 4 + (COLLECTIVE_ROW - 6) * (bytes[i] / (this.most[kind[i]] || 1));
      const known = PHASES.indexOf(phase[i]);
      context.fillStyle = known > 0 ? theme.phases[known] : theme.soft;
      const top = (kind[i] + 1) * COLLECTIVE_ROW - 1 - height;
      context.fillRect(begin, top, Math.max(end - begin - 0.5, 1), height);
      context.fillStyle = theme.soft;
      context.fillRect(begin, top, 1, height);
      drawn++;
    }
    context.restore();
    this.box.dataset.drawn = drawn;
  }

  /* The collectives at a point of the canvas. */
  at(x, y) {
    if (!this.timeline) return [];
    const row = Math.floor(y / COLLECTIVE_ROW);
    return [...this.data.kind.keys()].filter((i) => {
      if (this.data.kind[i] !== row) return false;
      const [begin, end] = this.ends(this.timeline, i);
      return x >= begin - COLLECTIVE_REACH && x <= end + COLLECTIVE_REACH;
    });
  }

  describe(i) {
    const { kinds, kind, bytes, module, phase, group, groups, time, nanoseconds, timing } = this.data;
    const name = module[i] < 0 ? "?" : this.capture.metadata.names[module[i]];
    const taken = nanoseconds[i] ? `, takes ${duration(nanoseconds[i] / 1e9)}${COLLECTIVE_TIMINGS[timing[i]] || ""}`
      : "";
    const what = make("div", "total", `${kinds[kind[i]]}${bytes[i] ? ` ${size(bytes[i])}` : ""}`);
    const which = make("div", "", `${phase[i]} of `, bdi(label(name)), `, at ${duration(time[i] / 1e6)}${taken}`);
    return [what, which, make("div", "", groups[group[i]])];
  }

  tooltip(found) {
    const parts = found.slice(0, COLLECTIVES_IN_TIP).flatMap((i) => this.describe(i));
    const rest = found.length - COLLECTIVES_IN_TIP;
    return rest > 0 ? [...parts, make("div", "none", `and ${rest.toLocaleString("en")} more here`)] : parts;
  }
}

/* Hovering names the collectives; a click selects the moment at which the first one was launched. */
function handleCollectives(page) {
  const lane = page.collectives;
  const under = (event) => {
    const { left, top } = lane.canvas.getBoundingClientRect();
    return lane.at(event.clientX - left, event.clientY - top);
  };
  lane.canvas.addEventListener("pointermove", (event) => {
    const found = under(event);
    if (found.length) showTooltip(lane.tooltip(found), event.clientX, event.clientY);
    else hideTooltip();
  });
  lane.canvas.addEventListener("pointerleave", hideTooltip);
  lane.canvas.addEventListener("click", (event) => {
    const [first] = under(event);
    if (first !== undefined) page.selectMoment(Math.max(lane.data.event[first] - 1, 0));
  });
}
