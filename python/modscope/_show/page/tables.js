/* tables.js - the tables: largest blocks, survivors, and captures side by side. */

const CHANGES_SHOWN = 20;

function addCell(row, inside, className = "") {
  const cell = make("td", className, inside);
  row.append(cell);
  return cell;
}

/* `kind`: a number in KINDS; 0: none. */
function addCategoryCell(row, category, isOutside, kind = 0) {
  addCell(row, make("span", "category", swatch(category), KINDS[kind]?.[0] ?? CATEGORIES[category], isOutside ? " *"
    : ""));
}

/* A module's name; a click on it calls select(fqn). */
function addModuleCell(row, fqn, select) {
  const button = makeButton("link", bdi(label(fqn)));
  button.title = clean(fqn);
  button.addEventListener("click", () => select(fqn));
  addCell(row, button, "module");
}

/* Shows the `most` largest blocks of the page's tick: all, or those of the selected module or group. */
function fillBlocks(page, most) {
  const { capture, tick } = page;
  const { rows, count } =
    capture.largestBlocks(tick, page.device, most, capture.templateMask(page.module, page.group), page.alike.together);
  const now = capture.time[tick] / 1e6;
  for (const title of find("blocks").querySelectorAll("th.of-line")) title.hidden = !capture.stacks.areKnown;
  find("blocks").tBodies[0].replaceChildren(...rows.map((block) => makeBlockRow(page, block, now)));
  find("blocks-outside").hidden = !rows.some(({ lifetime }) => capture.templateOutside[capture.template[lifetime]]);
  find("blocks-none").hidden = rows.length > 0;
  const more = find("blocks-more");
  more.hidden = rows.length >= count;
  more.textContent = `Show more (${counted(count, page.alike.together ? "row" : "block")} in total)`;
}

function makeBlockRow(page, { lifetime, bytes, allocation, count = 1, lastStep = allocation.step, modules }, now) {
  const { capture } = page;
  const template = capture.template[lifetime];
  const category = capture.templateCategory[template], isOutside = capture.templateOutside[template],
    kind = capture.templateKind[template];
  const fqn = capture.modules.fqn[capture.modules.templateModule[template]];
  const row = make("tr");
  Object.assign(row.dataset, {
    bytes, category: CATEGORIES[category], fqn, phase: PHASES[capture.templatePhase[template]], step: allocation.step,
    age: Math.round((now - allocation.time) * 1e6) / 1e6, outside: isOutside, count,
  });
  addCell(row, count > 1 ? `${count} × ${size(bytes)}` : size(bytes), "figure");
  addCategoryCell(row, category, isOutside, kind);
  if (kind) row.dataset.kind = KINDS[kind][0];
  const name = modules?.size > 1 ? mergeNumbers(fqn) : fqn;
  addModuleCell(row, name, () =>
    (name === fqn ? page.selectModuleByName(fqn) : page.selectGroup({ by: "module", key: name })));
  if (capture.stacks.areKnown) addPlaceCells(page, row, capture.stacks.place(capture.templateStack[template]));
  addCell(row, row.dataset.phase);
  addCell(row, lastStep > allocation.step ? `${allocation.step}-${lastStep}` : String(allocation.step), "figure");
  addCell(row, duration(Math.max(now - allocation.time, 0)), "figure");
  return row;
}

/* "train.py:41 in forward", in which the number of the line is never broken. */
function lineText(text) {
  const [, file, number, rest] = text.match(/^(.*):(\d+|[?])(.*)$/s) ?? [];
  if (file === undefined) return bdi(text);
  const whole = bdi("");
  whole.append(file, make("span", "number", `:${number}`), rest);
  return whole;
}

/* The line and the operator that made a block. A click on the row selects the line. */
function addPlaceCells(page, row, place) {
  Object.assign(row.dataset,
    { file: place.file ?? "", line: place.line ?? "", function: place.function ?? "", operator: place.operator ?? "" });
  const line = makeButton("link", lineText(clean(place.short || place.describe())));
  line.title = clean(place.describe());
  line.addEventListener("click", (event) => page.selectGroup({ by: "line", key: place.key }, event.detail === 0));
  row.addEventListener("click", (event) => event.target.closest("button")
    || page.selectGroup({ by: "line", key: place.key }));
  addCell(row, line, "line");
  addCell(row, bdi(clean(place.operator ?? "")), "operator");
}

/* The line that made most of a group of survivors; a click on it calls select(key). */
function addSurvivorLine(capture, row, lines, select) {
  const [first] = lines;
  if (!first) return addCell(row, "", "line");
  const key = `${first.file}:${first.line} in ${first.function}`;
  Object.assign(row.dataset, { file: first.file, line: first.line, function: first.function });
  const isShown = capture.keys("line").numbers.has(key);
  const text = lineText(clean(`${first.file.split("/").pop()}:${first.line} in ${first.function}`));
  const inside = isShown ? makeButton("link", text) : make("span", "link", text);
  inside.title = clean(key);
  if (isShown) inside.addEventListener("click", () => select(key));
  addCell(row, inside, "line").append(lines.length > 1 ? ` and ${counted(lines.length - 1, "more line")}` : "");
}

/* Shows the blocks that survive several steps, as `modscope leaks` finds them. */
function fillSurvivors(capture, select, selectLine) {
  const { leaks } = capture.metadata, hasLines = leaks.groups.some((group) => group.lines.length);
  find("survivors").querySelector("th.of-line").hidden = !hasLines;
  find("survivors-text").textContent = leaks.text;
  const table = find("survivors");
  table.hidden = !leaks.groups.length;
  const severalDevices = new Set(leaks.groups.map((group) => group.device)).size > 1;
  table.tBodies[0].replaceChildren(...leaks.groups.map((group) => {
    const row = make("tr");
    Object.assign(row.dataset,
      { bytes: group.bytes, category: group.category, fqn: group.module, device: group.device });
    addCell(row, size(group.bytes), "figure");
    addCategoryCell(row, CATEGORIES.indexOf(group.category), false);
    addModuleCell(row, group.module, select);
    if (hasLines) addSurvivorLine(capture, row, group.lines, selectLine);
    const sizes = group.sizes.slice(0, 3).map((each) => `${each.count} × ${size(each.bytes)}`).join(", ");
    const more = group.sizes.length > 3 ? ", …" : "", device = severalDevices ? ` on ${group.device}` : "";
    addCell(row, `${counted(group.count, "block")} (${sizes}${more})${device}`);
    addCell(row, `${group.steps} steps (${group.first_step} to ${group.last_step})`);
    return row;
  }));
}

/* ---- captures side by side ---- */

/* Shows the peaks of all captures. `captures`: {title, peaks: [{device, bytes, when, sums}]} of each. */
function fillPeaks(captures, shownIndex, show) {
  const most = Math.max(...captures.flatMap((one) => one.peaks.map((peak) => peak.bytes)), 1);
  const first = new Map(captures[0].peaks.map((peak) => [peak.device, peak.bytes]));
  const rows = captures.flatMap((one, index) => one.peaks.map((peak) => {
    const row = make("tr");
    Object.assign(row.dataset, { capture: index, device: peak.device, bytes: peak.bytes });
    const button = makeButton("link", bdi(clean(one.title)));
    button.addEventListener("click", () => show(index, peak.device));
    if (index === shownIndex) row.setAttribute("aria-current", "true");
    addCell(row, button);
    addCell(row, bdi(clean(peak.device)));
    addCell(row, `${one.is_lower_bound ? "at least " : ""}${size(peak.bytes)}`, "figure");
    const difference = peak.bytes - (first.get(peak.device) ?? 0);
    addCell(row, index && first.has(peak.device) ? (difference ? change(difference) : "the same") : "", "figure");
    const bar = make("span", "bar");
    fillBar(bar, CATEGORIES.map((name) => peak.sums[name] ?? 0), 0, peak.bytes, most);
    addCell(row, bar, "wide");
    addCell(row, bdi(peak.when));
    return row;
  }));
  find("peaks").tBodies[0].replaceChildren(...rows);
}

/* Own bytes at a capture's peak, by a key of category and fqn. */
function ownAtPeak(capture, device) {
  const held = capture.modules.heldAt(capture.series(device).peakTick, device);
  const owned = new Map();
  capture.modules.fqn.forEach((fqn, module) => {
    for (let c = 0; c < COUNT; c++) {
      const bytes = held.own[module * COUNT + c];
      if (bytes) owned.set(`${c} ${fqn}`, bytes);
    }
  });
  return owned;
}

/* The modules whose own bytes differ between A and B, the largest difference first. */
function changesBetween(a, b) {
  const rows = [...new Set([...a.keys(), ...b.keys()])].map((key) => {
    const before = a.get(key) ?? 0, after = b.get(key) ?? 0;
    return { category: Number(key[0]), fqn: key.slice(2), before, after, change: after - before };
  });
  return rows.filter((row) => row.change)
    .sort((x, y) => Math.abs(y.change) - Math.abs(x.change) || compareNames(x.fqn, y.fqn));
}

/* The changes of modules whose names differ only in numbers and which changed alike, as one: `count` says how many. */
function foldChanges(rows) {
  const folded = new Map();
  for (const row of rows) {
    const name = mergeNumbers(row.fqn), key = `${row.category} ${row.before} ${row.after} ${name}`,
      same = folded.get(key);
    if (!same) folded.set(key, { ...row, first: row.fqn, count: 1 });
    else Object.assign(same,
      { fqn: name, count: same.count + 1, before: same.before + row.before, after: same.after + row.after,
      change: same.change + row.change });
  }
  return [...folded.values()].sort((x, y) => Math.abs(y.change) - Math.abs(x.change) || compareNames(x.fqn, y.fqn));
}

function fillChanges(rows, showAll, select) {
  const shown = showAll ? rows : rows.slice(0, CHANGES_SHOWN);
  const most = rows.length ? Math.abs(rows[0].change) : 1;
  find("changes").tBodies[0].replaceChildren(...shown.map((each) => {
    const row = make("tr");
    const direction = each.change > 0 ? "more" : "less";
    Object.assign(row.dataset,
      { fqn: each.fqn, category: CATEGORIES[each.category], a: each.before, b: each.after, change: each.change });
    addCell(row, change(each.change), `figure ${direction}`);
    const bar = make("span", `difference ${direction}`, make("i"));
    bar.style.setProperty("--length", Math.abs(each.change) / most);
    addCell(row, bar, "wide");
    addCell(row, size(each.before), "figure");
    addCell(row, size(each.after), "figure");
    addCategoryCell(row, each.category, false);
    addModuleCell(row, each.fqn, () => select(each.first ?? each.fqn));
    if (each.count > 1) row.lastChild.append(` (${each.count} alike)`);
    return row;
  }));
  const more = find("changes-more");
  more.hidden = shown.length === rows.length;
  more.textContent = `Show ${counted(rows.length - shown.length, "smaller change")}`;
  find("changes-none").hidden = rows.length > 0;
}
