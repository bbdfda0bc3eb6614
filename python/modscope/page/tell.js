/* tell.js - what the page says in words: of the capture, the view, the moment, the module. */

function tellCapture(page) {
  const { words } = page.capture;
  document.title = words.title;
  find("program").replaceChildren(bdi(words.program));
  find("sentence").replaceChildren(...words.sentence.map(([text, strong]) => (strong ? make("strong", "", text) : text)));
  find("facts").textContent = words.facts;
  find("notes").replaceChildren(...words.notes.map((text) => make("li", "", text)));
  find("captures").value = String(page.index);
  find("comparison").hidden = words.all.length < 2;
  if (words.all.length > 1) fillPeaks(words.all, page.index, (index, device) => page.turnTo(index, device));
  tellDevices(page);
  tellOom(page);
  fillSurvivors(words.leaks, (fqn) => page.chooseModule(fqn));
}

function tellDevices(page) {
  const { words } = page.capture;
  const box = find("devices");
  box.hidden = words.used.length < 2;
  box.replaceChildren(...words.used.map((device) => {
    const button = make("button", "", bdi(words.devices[device]));
    button.type = "button";
    button.dataset.device = device;
    button.setAttribute("role", "radio");
    button.addEventListener("click", () => page.setDevice(device));
    return button;
  }));
}

function tellOom(page) {
  const { capture } = page;
  const last = capture.ooms.at(-1);
  find("oom").hidden = find("go-oom").hidden = !last;
  if (!last) return;
  const tick = last.tick;
  const series = capture.series(last.device);
  const held = series.total[series.at(tick)];
  const reserved = last.reserved || capture.reservedAt(tick, last.device);
  const where = when({ ...capture.spotAt(tick), phase: last.phase, module: last.module });
  const times = capture.ooms.length > 1 ? `${capture.ooms.length} allocations failed, the last one ` : "An allocation failed ";
  find("oom-text").replaceChildren(times, bdi(where), ".");
  const rows = [
    [size(last.requested), `was requested on ${capture.words.devices[last.device]}`],
    [atLeast(capture, tick, size(held)), "was held then, by the modules and blocks below: they stood in the way"],
  ];
  if (reserved) rows.push([size(reserved), `was reserved by the allocator, ${size(Math.max(reserved - held, 0))} more than was held`]);
  find("oom-figures").replaceChildren(...rows.flatMap(([figure, text]) => [make("dt", "", figure), make("dd", "", text)]));
  Object.assign(find("oom").dataset, { requested: last.requested, held, reserved, moment: capture.momentOf(tick) });
}

function tellView(page) {
  const { timeline } = page;
  const domain = timeline.domain(), { from, to } = timeline.range();
  const all = domain.to - domain.from;
  find("scroll").hidden = timeline.isWhole();
  find("thumb").style.left = `${(100 * (from - domain.from)) / all}%`;
  find("thumb").style.width = `${(100 * (to - from)) / all}%`;
  find("zoom-all").disabled = find("zoom-out").disabled = timeline.isWhole();
  for (const button of find("axes").children) button.setAttribute("aria-checked", button.dataset.axis === timeline.axis);
  find("own-scale").setAttribute("aria-pressed", timeline.ownScale);
  Object.assign(document.body.dataset, { from, to, axis: timeline.axis });
}

function tellMoment(page) {
  const { capture, device, tick, held } = page;
  const series = capture.series(device);
  const peak = series.total[series.peak];
  const spot = capture.spotAt(tick);
  const reserved = capture.reservedAt(tick, device);
  const name = capture.words.devices[device];
  const at = series.at(tick) === series.peak ? " at its peak" : "";
  const parts = [bdi(name), " held ", make("strong", "", atLeast(capture, tick, size(held.total))), `${at} `, bdi(when(spot))];
  if (reserved) parts.push(` (${size(reserved)} reserved)`);
  find("moment-title").replaceChildren(...parts);
  Object.assign(document.body.dataset, {
    capture: page.index, device: name, moment: capture.momentOf(tick), tick, time: capture.time[tick], total: held.total,
    reserved, peak, peakMoment: capture.momentOf(series.tick[series.peak]), isLowerBound: capture.isLowerBound(tick),
    module: page.node < 0 ? "" : capture.modules.fqn[page.node],
  });
  const slider = find("timeline");
  slider.setAttribute("aria-valuemin", 0);
  slider.setAttribute("aria-valuemax", capture.ticks - 1);
  slider.setAttribute("aria-valuenow", tick);
  slider.setAttribute("aria-valuetext", `${name} held ${size(held.total)} ${when(spot)}`);
  for (const button of find("devices").children) button.setAttribute("aria-checked", Number(button.dataset.device) === device);
  tellBefore(page, series);
  tellLegend(page, series);
  tellChosen(page);
}

/* What it was a moment before, and what came or went since. */
function tellBefore(page, series) {
  const { capture, tick } = page;
  const at = series.at(tick);
  const box = find("before");
  if (!at) return box.replaceChildren("It is where the page begins.");
  const changes = [...series.changes.subarray(series.first[at], series.first[at + 1])];
  const parts = changes.slice(0, 2).map((change) => {
    const kind = capture.kind[change < 0 ? ~change : change];
    const fqn = capture.modules.fqn[capture.modules.kindNode[kind]];
    const what = `${size(capture.kindBytes[kind])} of ${CATEGORIES[capture.kindCategory[kind]]} in `;
    return [what, bdi(label(fqn)), change < 0 ? " went" : " came"];
  });
  const more = changes.length > 2 ? [`, and ${counted(changes.length - 2, "more change")}`] : [];
  const joined = parts.flatMap((part, i) => [i ? ", " : "", ...part]);
  const since = tick === series.tick[at] ? "" : "; nothing has changed since";
  box.replaceChildren(`A moment before it was ${size(series.total[at - 1])}: then `, ...joined, ...more, `${since}.`);
  Object.assign(box.dataset, { total: series.total[at - 1], moment: capture.momentOf(series.tick[at - 1]) });
}

function tellLegend(page, series) {
  const { held } = page;
  const shown = STACKED.filter((c) => series.ever[c]).reverse();
  find("legend").replaceChildren(...shown.map((c) => {
    const item = make("li", held.sums[c] ? "" : "none", swatch(c), CATEGORIES[c], make("strong", "", size(held.sums[c])), make("span", "share", percent(held.sums[c], held.total)));
    item.dataset.category = CATEGORIES[c];
    item.dataset.bytes = held.sums[c];
    return item;
  }));
}

function tellChosen(page) {
  const { node, held, capture } = page;
  find("chosen").hidden = node < 0;
  if (node < 0) return;
  const bytes = held.wholeTotal[node];
  find("chosen-text").replaceChildren(bdi(label(capture.modules.fqn[node]), "fqn"),
    ` holds ${size(bytes)} of it with all below it (${percent(bytes, held.total)}); the timeline shows its share.`);
}

function tellRoot(page) {
  const { modules } = page.capture;
  const crumbs = [];
  if (page.root >= 0) {
    const all = make("button", "", "◂ all modules");
    all.type = "button";
    all.addEventListener("click", () => page.enter(-1));
    crumbs.push(all, " ", bdi(label(modules.fqn[page.root])));
  }
  find("crumbs").replaceChildren(...crumbs);
}
