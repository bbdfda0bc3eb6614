/* plans.js - the plot of plans: what a budget of memory costs in time. Each point is a plan; hovering or focusing it
 * shows the modules that it checkpoints, and choosing it draws its timeline. */

const PLOT = { height: 240, left: 64, right: 16, top: 14, bottom: 40 };
const GROUPS_SHOWN = 12;

function makeSvg(tag, attributes, ...inside) {
  const element = document.createElementNS(find("plan-svg").namespaceURI, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...inside);
  return element;
}

/* The values of an axis and what it spans, a little more than these. */
function makeAxis(values, from, to) {
  const least = Math.min(...values), most = Math.max(...values);
  const room = (most - least || most || 1) * 0.08;
  const low = Math.max(least - room, 0), high = most + room;
  return { low, high, at: (value) => from + ((value - low) / (high - low)) * (to - from) };
}

class PlanPlot {
  constructor(box, choose) {
    this.box = box;
    this.choose = choose;
  }

  /* Draws the plans of a capture; `chosen`: the index of a point, or -1. */
  draw(plan, chosen) {
    const width = Math.max(this.box.clientWidth, 280);
    if (this.drawn && this.drawn.plan === plan && this.drawn.chosen === chosen && this.drawn.width === width) return;
    this.drawn = { plan, chosen, width };
    const hadFocus = this.box.contains(document.activeElement);
    const { points } = plan;
    const bytes = points.map((point) => point.reserved);
    const isBudgetNear = plan.capacity <= 1.15 * Math.max(...bytes) && plan.capacity >= 0.85 * Math.min(...bytes);
    this.x = makeAxis(isBudgetNear ? [...bytes, plan.capacity] : bytes, PLOT.left, width - PLOT.right);
    this.y = makeAxis(points.map((point) => point.step_ms), PLOT.height - PLOT.bottom, PLOT.top);
    const svg = find("plan-svg");
    for (const [name, value] of [["viewBox", `0 0 ${width} ${PLOT.height}`], ["width", width], ["height", PLOT.height]])
      svg.setAttribute(name, value);
    svg.replaceChildren(...this.makeGrid(plan, width), this.makeStairs(points, width),
      ...(isBudgetNear ? this.makeBudget(plan) : []),
      ...points.map((point, i) => this.makePoint(plan, i, chosen)));
    if (hadFocus) this.focus(chosen);
  }

  makeGrid(plan, width) {
    const { x, y } = this;
    const parts = [];
    const bytes = byteStep(x.high - x.low, Math.max(Math.floor(width / 110), 2));
    for (let at = Math.ceil(x.low / bytes) * bytes; at <= x.high; at += bytes) {
      parts.push(makeSvg("line",
        { class: "grid", x1: x.at(at), x2: x.at(at), y1: PLOT.top, y2: PLOT.height - PLOT.bottom }));
      parts.push(makeSvg("text", { x: x.at(at), y: PLOT.height - PLOT.bottom + 15, "text-anchor": "middle" },
        shortSize(at)));
    }
    const time = decimalStep((y.high - y.low) / 5);
    for (let i = Math.ceil(y.low / time); i * time <= y.high; i++) {
      parts.push(makeSvg("line",
        { class: "grid", x1: PLOT.left, x2: width - PLOT.right, y1: y.at(i * time), y2: y.at(i * time) }));
      parts.push(makeSvg("text", { x: PLOT.left - 6, y: y.at(i * time) + 4, "text-anchor": "end" },
        `${+(i * time).toPrecision(6)} ms`));
    }
    const title = `${plan.verb} at most; the vertical axis is the time of a step`;
    parts.push(makeSvg("text", { x: (PLOT.left + width - PLOT.right) / 2, y: PLOT.height - 6, "text-anchor": "middle" },
      title));
    return parts;
  }

  /* What a budget between two points costs: as much as the plan that needs less memory than it. */
  makeStairs(points, width) {
    const { x, y } = this;
    const steps = points.slice(1).map((point, i) => `V${y.at(point.step_ms)}H${x.at(point.reserved)}`);
    const first = points[0];
    return makeSvg("path",
      { class: "stairs", d: `M${width - PLOT.right},${y.at(first.step_ms)}H${x.at(first.reserved)}${steps.join("")}` });
  }

  makeBudget({ capacity, gpu }) {
    const at = this.x.at(capacity);
    const isLeft = at > (this.x.at(this.x.low) + this.x.at(this.x.high)) / 2;
    const text = { class: "budget", x: at + (isLeft ? -6 : 6), y: PLOT.top + 10, "text-anchor": isLeft ? "end"
      : "start" };
    return [
      makeSvg("line", { class: "budget", x1: at, x2: at, y1: PLOT.top, y2: PLOT.height - PLOT.bottom }),
      makeSvg("text", text, `${gpu ?? "budget"} ${size(capacity)}`),
    ];
  }

  makePoint(plan, i, chosen) {
    const point = plan.points[i];
    const isChosen = i === chosen;
    const x = this.x.at(point.reserved), y = this.y.at(point.step_ms);
    const focusable = isChosen || (chosen < 0 && i === 0);
    const mark = makeSvg("g", {
      class: `point${point.is_plan && point.modules ? " is-plan" : ""}`, role: "radio", tabindex: focusable ? 0 : -1,
        "aria-checked": isChosen,
      "aria-label": `${describePoint(plan, point)}. ${point.name || "Nothing is checkpointed"}`,
      "data-index": i, "data-bytes": point.reserved, "data-ms": point.step_ms,
    }, makeSvg("circle", { class: "target", cx: x, cy: y, r: 14 }),
      makeSvg("circle", { class: "ring", cx: x, cy: y, r: 9 }),
    makeSvg("circle", { class: "dot", cx: x, cy: y, r: 5 }));
    const named = [...(point.is_plan && point.modules ? ["plan"] : []), ...(point.is_knee ? ["knee"] : [])];
    if (named.length) mark.append(makeSvg("text", { x: x + 12, y: y - 8 }, `the ${named.join(" and the ")}`));
    mark.addEventListener("pointermove", (event) =>
      showTooltip(planTooltip(plan, point), event.clientX, event.clientY));
    mark.addEventListener("pointerleave", hideTooltip);
    mark.addEventListener("focus", () => this.showTooltipOf(plan, i));
    mark.addEventListener("blur", hideTooltip);
    mark.addEventListener("click", () => this.choose(i));
    mark.addEventListener("keydown", (event) => this.handleKey(event, plan, i));
    return mark;
  }

  /* The arrow keys choose the next point, as in every group of radio buttons. */
  handleKey(event, plan, i) {
    /* The points go from right to left. */
    const by = { ArrowLeft: 1, ArrowUp: 1, ArrowRight: -1, ArrowDown: -1 }[event.key];
    const isChosen = event.key === " " || event.key === "Enter";
    if (by === undefined && !isChosen) return;
    event.preventDefault();
    event.stopPropagation();
    const to = Math.min(Math.max(i + (by ?? 0), 0), plan.points.length - 1);
    this.choose(to);
    this.focus(to);
  }

  focus(i) {
    this.box.querySelector(`[data-index="${Math.max(i, 0)}"]`)?.focus({ focusVisible: true });
  }

  showTooltipOf(plan, i) {
    const { left, top, width } = this.box.querySelector(`[data-index="${i}"] .dot`).getBoundingClientRect();
    showTooltip(planTooltip(plan, plan.points[i]), left + width, top);
  }
}

/* "5.49 GiB reserved, 82.9 ms (+6.7 %) a step" */
function describePoint(plan, point) {
  return `${size(point.reserved)} ${plan.verb}, ${point.time} a step`;
}

function planTooltip(plan, point) {
  const shown = point.groups.slice(0, GROUPS_SHOWN);
  const parts = [make("div", "total", describePoint(plan, point))];
  parts.push(make("div", "", point.modules ? `checkpoints ${counted(point.modules, "module")}:`
    : "nothing is checkpointed"));
  parts.push(...shown.map((group) => make("div", "fqn", bdi(group))));
  if (shown.length < point.groups.length)
    parts.push(make("div", "note", `and ${point.groups.length - shown.length} more lines`));
  return parts;
}

/* Writes the plot and the modules of the chosen plan. */
function describePlan(page) {
  const { plan } = page.capture.metadata;
  find("plan").hidden = !plan;
  if (!plan) return;
  const chosen = page.change?.part === "plan" ? page.change.index : page.change ? -1 : 0;
  find("plan-text").replaceChildren(bdi(plan.text));
  describeModules(plan);
  const isPlotted = plan.points.length > 1;
  find("plan-body").hidden = !isPlotted;
  if (!isPlotted) return;
  page.plans.draw(plan, chosen);
  const point = plan.points[Math.max(chosen, 0)];
  find("plan-title-of").textContent = chosen < 0 ? "" : describePoint(plan, point);
  const groups = chosen < 0 ? [] : point.modules ? point.groups.map((group) => make("li", "fqn", bdi(group)))
    : [make("li", "", "nothing is checkpointed")];
  find("plan-groups").replaceChildren(...groups);
}

/* ---- what a module may keep ---- */

const CURVE = { width: 150, height: 34, margin: 4 };

function describeModules({ modules }) {
  find("plan-modules").hidden = !modules.length;
  find("plan-modules").querySelector("tbody").replaceChildren(...modules.map(makeModuleRow));
}

function makeModuleRow(module) {
  const knee = module.points.find((point) => point.is_knee);
  const last = module.points[module.points.length - 1];
  return make("tr", "", make("td", "fqn", bdi(module.name), module.count), make("td", "figure", size(module.kept)),
    make("td", "figure", last.time), make("td", "", makeCurve(module)),
    knee ? make("td", "", "keep ", bdi(knee.keep), `: ${size(knee.kept)}, ${knee.time}`) : make("td", "soft", "none"));
}

/* Bytes to the right, time upwards: a dot for each choice, and the knee filled. */
function makeCurve({ name, kept, points }) {
  const longest = Math.max(...points.map((point) => point.ms), 1e-9);
  const { width, height, margin } = CURVE;
  const x = (point) => margin + (point.kept / kept) * (width - 2 * margin);
  const y = (point) => height - margin - (point.ms / longest) * (height - 2 * margin);
  const texts = points.map((point) => `${point.keep}: ${size(point.kept)}, ${point.time}`);
  const svg = makeSvg("svg", { class: "module-curve", viewBox: `0 0 ${width} ${height}`, width, height, role: "img",
    "aria-label": `${name}. ${texts.join("; ")}` });
  svg.append(makeSvg("polyline", { points: points.map((point) => `${x(point)},${y(point)}`).join(" ") }));
  points.forEach((point, i) => {
    const dot = makeSvg("circle", { class: point.is_knee ? "knee" : "", cx: x(point), cy: y(point), r: 3 });
    dot.addEventListener("pointermove", (event) =>
      showTooltip([make("div", "", bdi(texts[i]))], event.clientX, event.clientY));
    dot.addEventListener("pointerleave", hideTooltip);
    svg.append(dot);
  });
  return svg;
}
