/* epoch.js - what modscope predict --epoch found: what is reserved and allocated over the batches of the epoch, and how
 * many batches have which size. */

const EPOCH = { height: 230, low: 150, left: 64, right: 16, top: 18, bottom: 40 };

/* Shows the panel, or hides it where no epoch was predicted. */
function describeEpoch({ epoch }) {
  const panel = find("epoch");
  panel.hidden = !epoch;
  if (!epoch) return;
  const width = Math.max(panel.clientWidth, 280);
  if (panel.drawn === epoch && panel.dataset.width === String(width)) return;
  panel.drawn = epoch;
  panel.dataset.width = width;
  find("epoch-text").replaceChildren(bdi(epoch.text));
  drawEpochCurve(epoch, width);
  find("epoch-lines").replaceChildren(...epoch.lines.map(([kind, text]) => makeLegendLine(kind, text)));
  find("epoch-shapes").hidden = !epoch.bins.length;
  if (epoch.bins.length) drawEpochShapes(epoch, width);
}

function makeLegendLine(kind, text) {
  const sample = make("i", kind);
  sample.setAttribute("aria-hidden", "true");
  return make("li", "", sample, bdi(text));
}

/* An empty picture with axes from 0 to `mostX` and `mostY`. */
function makePicture(id, { width, height, lowX, highX, mostY, title, label }) {
  const svg = find(id), { left, right, top, bottom } = EPOCH;
  for (const [name, value] of Object.entries({ viewBox: `0 0 ${width} ${height}`, width, height, "aria-label": label }))
    svg.setAttribute(name, value);
  const x = (value) => left + ((value - lowX) / (highX - lowX)) * (width - left - right);
  const y = (value) => height - bottom - (value / mostY) * (height - top - bottom);
  const parts = [];
  const step = Math.max(decimalStep(((highX - lowX) * 80) / width), 1);
  for (let at = Math.ceil(lowX / step) * step; at <= highX; at += step)
    parts.push(makeSvg("text", { x: x(at), y: height - bottom + 15, "text-anchor": "middle" },
      at.toLocaleString("en")));
  parts.push(makeSvg("text", { x: (left + width - right) / 2, y: height - 6, "text-anchor": "middle" }, title));
  svg.replaceChildren(...parts);
  return { svg, x, y, right: width - right };
}

function addHeights({ svg, y, right }, step, most, text) {
  for (let at = 0; at <= most; at += step) {
    svg.append(makeSvg("line", { class: "grid", x1: EPOCH.left, x2: right, y1: y(at), y2: y(at) }));
    svg.append(makeSvg("text", { x: EPOCH.left - 6, y: y(at) + 4, "text-anchor": "end" }, text(at)));
  }
}

function drawEpochCurve(epoch, width) {
  const { points, batches, capacity, failure } = epoch;
  const most = Math.max(...points.map((point) => point.reserved), capacity ?? 0) * 1.06;
  const picture = makePicture("epoch-curve", { width, height: EPOCH.height, lowX: 0, highX: batches, mostY: most,
    title: "batch of the epoch", label: epoch.curve });
  const { svg, x, y, right } = picture;
  addHeights(picture, byteStep(most, 6), most, shortSize);
  for (const kind of ["allocated", "reserved"]) {
    const steps = points.map((point) => `H${x(point.batch)}V${y(point[kind])}`);
    const from = `M${x(points[0].batch)},${y(points[0][kind])}`;
    svg.append(makeSvg("path", { class: kind, d: `${from}${steps.join("")}H${right}` }));
  }
  if (capacity) {
    const at = y(capacity);
    svg.append(makeSvg("line", { class: "capacity", x1: EPOCH.left, x2: right, y1: at, y2: at }));
  }
  if (failure) {
    const at = x(failure.batch + 0.5), isLeft = at > width / 2;
    svg.append(makeSvg("line",
      { class: "failure", x1: at, x2: at, y1: EPOCH.top - 6, y2: EPOCH.height - EPOCH.bottom }));
    svg.append(makeSvg("text", { class: "failure", x: at + (isLeft ? -6 : 6), y: EPOCH.top - 6,
      "text-anchor": isLeft ? "end" : "start" }, failure.text));
  }
  svg.onpointerleave = hideTooltip;
  svg.onpointermove = (event) => {
    const found = points.findLast((point) => x(point.batch) <= event.offsetX) ?? points[0];
    showTooltip([make("div", "total", found.text), make("div", "", `${size(found.reserved)} reserved`),
      make("div", "", `${size(found.allocated)} allocated`)], event.clientX, event.clientY);
  };
}

function drawEpochShapes(epoch, width) {
  const { bins } = epoch;
  const most = Math.max(...bins.map((bin) => bin.batches)) * 1.06;
  const picture = makePicture("epoch-bars", { width, height: EPOCH.low, lowX: bins[0].from,
    highX: bins[bins.length - 1].to, mostY: most, title: epoch.axis, label: epoch.shapes });
  const { svg, x, y } = picture;
  addHeights(picture, Math.max(decimalStep(most / 4), 1), most, (at) => at.toLocaleString("en"));
  for (const bin of bins) {
    const top = Math.min(y(bin.batches), y(0) - 2);
    const bar = makeSvg("rect", { class: bin.decides ? "batches decides" : "batches", x: x(bin.from), y: top,
      width: Math.max(x(bin.to) - x(bin.from) - 1, 1), height: y(0) - top, "data-batches": bin.batches });
    bar.addEventListener("pointermove", (event) =>
      showTooltip([make("div", "", bdi(bin.text))], event.clientX, event.clientY));
    bar.addEventListener("pointerleave", hideTooltip);
    svg.append(bar);
  }
  find("epoch-bars-lines").replaceChildren(makeLegendLine("decides", epoch.decides));
}
