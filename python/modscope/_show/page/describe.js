/* describe.js - writes into the page what is shown: the capture, the view, the moment, the module. */

const OOM_LINES = 4; /* as many lines as the report on stderr has */

function atLeast(capture, tick, text) {
  return capture.isLowerBound(tick) ? `at least ${text}` : text;
}

function describeCapture(page) {
  const { metadata } = page.capture;
  document.title = metadata.title;
  find("program").replaceChildren(bdi(metadata.program));
  for (const id of ["sentence", "lead"])
    find(id).replaceChildren(...metadata[id].map(([text, isStrong]) => (isStrong ? make("strong", "", text) : text)));
  find("facts").textContent = metadata.facts;
  find("notes").replaceChildren(...metadata.notes.map((text) => make("li", "", text)));
  find("captures").value = String(page.index);
  find("comparison").hidden = metadata.all.length < 2;
  if (metadata.all.length > 1) fillPeaks(metadata.all, page.index, (index, device) => page.switchTo(index, device));
  describeDevices(page);
  describeOom(page);
  fillLevers(metadata, (change) => page.setChange(change));
  fillSurvivors(page.capture, (fqn) => page.selectModuleByName(fqn), (key) => page.selectGroup({ by: "line", key }));
  describeGroupings(page);
}

function describeDevices(page) {
  const { metadata } = page.capture;
  const box = find("devices");
  box.hidden = metadata.used.length < 2;
  box.replaceChildren(...metadata.used.map((device) => {
    const button = makeButton("", bdi(metadata.devices[device]));
    button.dataset.device = device;
    button.setAttribute("role", "radio");
    button.addEventListener("click", () => page.setDevice(device));
    return button;
  }));
}

function describeOom(page) {
  const { capture } = page;
  const last = capture.ooms.at(-1);
  find("oom").hidden = find("go-oom").hidden = !last;
  if (!last) return;
  const { tick, device, requested } = last;
  const held = capture.series(device).totalAt(tick);
  const reserved = last.reserved || capture.reservedAt(tick, device);
  const count = capture.ooms.length;
  const position = when({ ...capture.positionAt(tick), phase: last.phase, module: last.module });
  find("oom-text").replaceChildren(count > 1 ? `${count} allocations failed, the last one ` : "An allocation failed ",
    bdi(position), ".");
  const rows = [
    [size(requested), `was requested on ${capture.metadata.devices[device]}.`],
    [atLeast(capture, tick, size(held)), "was allocated at that moment, by the modules and blocks below."],
  ];
  if (reserved)
    rows.push([size(reserved),
      `was reserved by the allocator, ${size(Math.max(reserved - held, 0))} more than was allocated.`]);
  if (capture.metadata.requested_by) rows.unshift(["requested by", bdi(capture.metadata.requested_by, "fqn")]);
  rows.push(...makeOomLines(page, last));
  find("oom-figures").replaceChildren(
    ...rows.flatMap(([figure, text]) => [make("dt", "", figure), make("dd", "", text)]));
  Object.assign(find("oom").dataset, { requested, held, reserved, moment: capture.momentOf(tick) });
}

/* The lines that made most of what was held when an allocation failed, as rows of a figure and a button. */
function makeOomLines(page, { tick, device }) {
  const { capture } = page;
  if (!capture.stacks.areKnown) return [];
  const keys = capture.keys("line"), sums = keys.sumsAt(capture, tick, device, null);
  return keys.largestAt(capture, tick, device, null).slice(0, OOM_LINES).map((key) => {
    const button = makeButton("link", lineText(keys.labels[key]));
    button.addEventListener("click", () => page.selectGroup({ by: "line", key: keys.texts[key] }));
    return [size(sums[key]), button];
  });
}

function describeView(page) {
  const { timeline } = page;
  const domain = timeline.domain(), { from, to } = timeline.range();
  const length = domain.to - domain.from;
  find("scroll").hidden = !timeline.isZoomed();
  find("scroll").style.marginLeft = `${timeline.left}px`;
  find("thumb").style.left = `${(100 * (from - domain.from)) / length}%`;
  find("thumb").style.width = `${(100 * (to - from)) / length}%`;
  find("zoom-all").disabled = find("zoom-out").disabled = timeline.isWholeRun();
  describeFold(timeline);
  describeRange(page);
  describeChange(page);
  describeEpoch(page.capture.metadata);
  for (const button of find("groupings").children) button.setAttribute("aria-checked", button.dataset.by === page.by);
  for (const button of find("axes").children)
    button.setAttribute("aria-checked", button.dataset.axis === timeline.axis);
  for (const id of ["own-scale", "place-scale"]) find(id).setAttribute("aria-pressed", timeline.ownScale);
  Object.assign(document.body.dataset, { from, to, axis: timeline.axis, folded: timeline.isFolded });
}

/* While the timeline is zoomed in, the steps, the phases and the modules that its range begins and ends in. */
function describeRange({ timeline, capture }) {
  const box = find("range-text"), { from, to } = timeline.range();
  box.hidden = !timeline.isZoomed();
  if (box.hidden) return;
  const ticks = [from, to].map((at) => timeline.tickAt(at));
  const [first, last] = ticks.map((tick) => capture.positionAt(tick));
  const words = ({ step, phase, module }, withStep) => {
    const running = phase === "idle" ? "between calls" : `${phase}${module === "Global" ? "" : ` of ${label(module)}`}`;
    return withStep ? `${step ? `step ${step}` : "before step 1"}, ${running}` : running;
  };
  const begin = words(first, true), end = words(last, first.step !== last.step),
    isSame = words(first, true) === words(last, true);
  const length = duration((capture.time[ticks[1]] - capture.time[ticks[0]]) / 1e6);
  box.replaceChildren(`Shown: ${length}, `, bdi(begin), ...(isSame ? ["."] : [" to ", bdi(end), "."]));
}

/* The button above the hatched band, and the one that folds again. */
function describeFold(timeline) {
  const { fold } = timeline;
  const band = find("unfold"), button = find("zoom-steps");
  band.hidden = !timeline.hasBand();
  button.hidden = !fold;
  if (!fold) return;
  button.disabled = timeline.isFolded && !timeline.isZoomed();
  button.textContent = `From step ${fold.number}`;
  button.title = `Hide what comes before step ${fold.number} (1)`;
  Object.assign(band.style, { left: `${timeline.axisLeft}px`, width: `${timeline.left - timeline.axisLeft - 2}px` });
  band.title = `Show what comes before step ${fold.number} (0)`;
  band.setAttribute("aria-label", `Show ${timeline.foldText()}`);
}

function describeMoment(page) {
  const { capture, device, tick, held } = page;
  const series = capture.series(device);
  const position = capture.positionAt(tick);
  const reserved = capture.reservedAt(tick, device);
  const name = capture.metadata.devices[device];
  const atPeak = series.changeAt(tick) === series.peak ? " at its peak" : "";
  /* The true peak may be among the events that are missing. */
  const isLowerBound = capture.isLowerBound(tick) || (atPeak !== "" && capture.metadata.is_lower_bound);
  const parts = [bdi(name), " held ", make("strong", "", `${isLowerBound ? "at least " : ""}${size(held.total)}`),
    `${atPeak} `, bdi(when(position))];
  if (reserved) parts.push(` (${size(reserved)} reserved)`);
  find("moment-title").replaceChildren(...parts);
  Object.assign(document.body.dataset, {
    capture: page.index, device: name, moment: capture.momentOf(tick), tick, time: capture.time[tick],
      total: held.total,
    reserved, peak: series.peakTotal, peakMoment: capture.momentOf(series.peakTick), isLowerBound,
    module: page.module < 0 ? "" : capture.modules.fqn[page.module], by: page.by, group: page.group
      ? `${page.group.by}:${page.group.key}` : "",
  });
  describeSlider(capture, tick, `${name} held ${size(held.total)} ${when(position)}`);
  for (const button of find("devices").children)
    button.setAttribute("aria-checked", Number(button.dataset.device) === device);
  describeLastChange(page, series);
  describeLegend(page, series);
  describeSelection(page);
  describePlace(page);
}

/* For screen readers the timeline is a slider. */
function describeSlider(capture, tick, text) {
  const slider = find("timeline");
  slider.setAttribute("aria-valuemin", 0);
  slider.setAttribute("aria-valuemax", capture.ticks - 1);
  slider.setAttribute("aria-valuenow", tick);
  slider.setAttribute("aria-valuetext", text);
}

/* The total before the last change of memory, and what that change was. */
function describeLastChange(page, series) {
  const { capture, tick } = page;
  const at = series.changeAt(tick);
  const box = find("before");
  if (!at) return box.replaceChildren("This is the first moment on the page.");
  const changes = describeChanges(capture, [...series.changes.subarray(series.first[at], series.first[at + 1])]);
  const parts = changes.slice(0, 2);
  const more = changes.length > 2 ? [`, with ${counted(changes.length - 2, "more change")}`] : [];
  const joined = parts.flatMap((part, i) => [i ? ", " : "", ...part]);
  const since = tick === series.tick[at] ? "." : ". Nothing has changed since.";
  box.replaceChildren(`Before the last change, it was ${size(series.total[at - 1])}. Then `, ...joined, ...more, since);
  Object.assign(box.dataset, { total: series.total[at - 1], moment: capture.momentOf(series.tick[at - 1]) });
}

/* What each change did, as parts of a sentence. A lifetime that continues another one's block is one change with it. */
function describeChanges(capture, changes) {
  const { template, templateBytes, templateCategory, templateKind, templatePath, modules } = capture;
  const owner = (lifetime) => bdi(label(modules.fqn[modules.templateModule[template[lifetime]]]));
  const category = (lifetime) => KINDS[templateKind[template[lifetime]]]?.[0]
    ?? CATEGORIES[templateCategory[template[lifetime]]];
  const bytes = (lifetime) => size(templateBytes[template[lifetime]]);
  const previous = (lifetime) => lifetime - (capture.previous.get(lifetime) ?? 0);
  const continued = new Set(changes.filter((change) => change >= 0 && previous(change) !== change).map(previous));
  return changes.filter((change) => change >= 0 || !continued.has(~change)).map((change) => {
    if (change < 0) return [owner(~change), ` freed ${bytes(~change)} of ${category(~change)}`];
    const before = previous(change);
    if (before === change) return [owner(change), ` allocated ${bytes(change)} of ${category(change)}`];
    const sameOwner = templatePath[template[before]] === templatePath[template[change]];
    const newOwner = sameOwner ? [] : [" of ", owner(change)];
    return [`${bytes(change)} of ${category(before)} of `, owner(before), ` became ${category(change)}`, ...newOwner];
  });
}


function describeSelection(page) {
  const { module, held, capture } = page;
  find("selection").hidden = module < 0;
  if (module < 0) return;
  const bytes = held.subtreeTotal[module];
  find("selection-text").replaceChildren(bdi(label(capture.modules.fqn[module]), "fqn"),
    ` and its children own ${size(bytes)} at this moment (${percent(bytes, held.total)}). The timeline shows their share.`);
}

/* The way back from a module that fills the treemap. */
function describeTreemapRoot(page) {
  const crumbs = [];
  if (page.root >= 0) {
    const button = makeButton("", "◂ All modules");
    button.addEventListener("click", () => page.setTreemapRoot(-1));
    crumbs.push(button, " ", bdi(label(page.capture.modules.fqn[page.root])));
  }
  find("crumbs").replaceChildren(...crumbs);
}

/* ---- tooltips ---- */

/* What the tooltip says about a tick; `group` is the one under the pointer, or -1. */
function momentTooltip(page, tick, group) {
  const { capture, device } = page;
  const series = capture.series(device);
  const total = series.totalAt(tick);
  const rows = groupRows(page.timeline.grouping, series, tick, group);
  const parts = [
    make("div", "total", atLeast(capture, tick, size(total))),
    make("div", "", bdi(when(capture.positionAt(tick)))),
    make("table", "", make("tbody", "", ...rows)),
  ];
  const reserved = capture.reservedAt(tick, device);
  if (reserved) parts.push(make("div", "note", `${size(reserved)} reserved`));
  parts.push(...editedTooltip(page, tick));
  if (page.module >= 0 || page.group) {
    const share = size(capture.series(device, page.module, page.group).totalAt(tick));
    const name = page.group ? labelOfGroup(capture, page.group) : label(capture.modules.fqn[page.module]);
    parts.push(make("div", "note", bdi(name), `: ${share}`));
  }
  return parts;
}

/* What the tooltip says about a box of the treemap. */
function boxTooltip(page, { module, group, bytes, fold, blocks }) {
  const { held } = page, { grouping } = page.timeline;
  const parts = [make("div", "total", bdi(label(page.treemap.nameOf(module, fold))))];
  if (blocks) parts.push(make("div", "", counted(blocks, "block")));
  if (group >= 0) parts.push(
    make("div", "", make("span", "category", grouping.swatch(group), bdi(grouping.label(group)), ` ${size(bytes)}`)));
  if (group >= 0 && grouping.by === "category")
    parts.push(...makeKinds(group, page.capture.kindsAt(page.tick, page.device, module)));
  const times = fold?.times ?? 1, subtree = held.subtreeTotal[module] * times, own = held.ownTotal[module] * times;
  const each = fold ? ` in ${fold.times} modules that are alike` : "";
  parts.push(make("div", "", `Subtree: ${size(subtree)}${each}, ${percent(subtree, held.total)} of the device`));
  if (own !== subtree) parts.push(make("div", "", `Own: ${size(own)}`));
  return parts;
}

function showTooltip(parts, x, y) {
  const tooltip = find("tip");
  tooltip.replaceChildren(...parts);
  tooltip.hidden = false;
  const { width, height } = tooltip.getBoundingClientRect();
  const left = x + 16 + width > innerWidth ? Math.max(x - width - 16, 4) : x + 16;
  tooltip.style.left = `${left}px`;
  tooltip.style.top = `${Math.min(Math.max(y - 20, 4), Math.max(innerHeight - height - 4, 4))}px`;
}

function hideTooltip() {
  find("tip").hidden = true;
}
