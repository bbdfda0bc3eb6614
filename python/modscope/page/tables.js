/* tables.js - what is told in tables: the largest blocks, what survives, captures side by side. */

const CHANGES_SHOWN = 20;

function cell(row, inside, className = "") {
  const td = make("td", className, inside);
  row.append(td);
  return td;
}

/* A category as a swatch and its word. */
function categoryCell(row, category, outside) {
  cell(row, make("span", "kind", swatch(category), CATEGORIES[category], outside ? " *" : ""));
}

function moduleCell(row, fqn, choose) {
  const button = make("button", "link", bdi(label(fqn)));
  button.type = "button";
  button.title = clean(fqn);
  button.addEventListener("click", () => choose(fqn));
  cell(row, button, "module");
}

/* The largest blocks of a tick; `shown` many. */
function fillBlocks(capture, tick, device, node, shown, choose) {
  const within = node < 0 ? null : capture.modules.within(node);
  const { rows, count } = capture.largest(tick, device, shown, within);
  const now = capture.time[tick] / 1e6;
  const body = find("blocks").tBodies[0];
  body.replaceChildren(...rows.map(({ stay, bytes, birth }) => {
    const kind = capture.kind[stay];
    const fqn = capture.modules.fqn[capture.modules.kindNode[kind]];
    const row = make("tr");
    Object.assign(row.dataset, {
      bytes, category: CATEGORIES[capture.kindCategory[kind]], fqn, phase: PHASES[capture.kindPhase[kind]],
      step: birth.step, age: Math.round((now - birth.time) * 1e6) / 1e6, outside: capture.kindOutside[kind],
    });
    cell(row, size(bytes), "figure");
    categoryCell(row, capture.kindCategory[kind], capture.kindOutside[kind]);
    moduleCell(row, fqn, choose);
    cell(row, row.dataset.phase);
    cell(row, String(birth.step), "figure");
    cell(row, duration(Math.max(now - birth.time, 0)), "figure");
    return row;
  }));
  find("blocks-outside").hidden = !rows.some(({ stay }) => capture.kindOutside[capture.kind[stay]]);
  find("blocks-none").hidden = rows.length > 0;
  const more = find("blocks-more");
  more.hidden = rows.length >= count;
  more.textContent = `Show more (${counted(count, "block")} in all)`;
}

/* What survives step after step, as `modscope leaks` finds it. */
function fillSurvivors(leaks, choose) {
  find("survivors-text").textContent = leaks.text;
  const table = find("survivors");
  table.hidden = !leaks.groups.length;
  const several = new Set(leaks.groups.map((group) => group.device)).size > 1;
  table.tBodies[0].replaceChildren(...leaks.groups.map((group) => {
    const row = make("tr");
    Object.assign(row.dataset, { bytes: group.bytes, category: group.category, fqn: group.module, device: group.device });
    cell(row, size(group.bytes), "figure");
    categoryCell(row, CATEGORIES.indexOf(group.category), false);
    moduleCell(row, group.module, choose);
    const sizes = group.sizes.slice(0, 3).map((each) => `${each.count} × ${size(each.bytes)}`).join(", ");
    cell(row, `${counted(group.count, "block")} (${sizes}${group.sizes.length > 3 ? ", …" : ""})${several ? ` on ${group.device}` : ""}`);
    cell(row, `${group.steps} steps (${group.first_step} to ${group.last_step})`);
    return row;
  }));
}

/* ---- captures side by side ---- */

/* Peaks of all captures. `list`: {title, peaks: [{device, bytes, when, sums}]} of each. */
function fillPeaks(list, shown, show) {
  const most = Math.max(...list.flatMap((one) => one.peaks.map((peak) => peak.bytes)), 1);
  const first = new Map(list[0].peaks.map((peak) => [peak.device, peak.bytes]));
  const rows = list.flatMap((one, index) => one.peaks.map((peak) => {
    const row = make("tr");
    Object.assign(row.dataset, { capture: index, device: peak.device, bytes: peak.bytes });
    const button = make("button", "link", bdi(clean(one.title)));
    button.type = "button";
    button.addEventListener("click", () => show(index, peak.device));
    if (index === shown) row.setAttribute("aria-current", "true");
    cell(row, button);
    cell(row, bdi(clean(peak.device)));
    cell(row, `${one.is_lower_bound ? "at least " : ""}${size(peak.bytes)}`, "figure");
    const than = peak.bytes - (first.get(peak.device) ?? 0);
    cell(row, index && first.has(peak.device) ? (than ? change(than) : "the same") : "", "figure");
    const bar = make("span", "bar");
    const sums = CATEGORIES.map((word) => peak.sums[word] ?? 0);
    fillBar(bar, sums, 0, peak.bytes, most);
    cell(row, bar, "wide");
    cell(row, bdi(peak.when));
    return row;
  }));
  find("peaks").tBodies[0].replaceChildren(...rows);
}

/* What each module holds itself by category at a capture's peak: "fqn\ncategory" to bytes. */
function ownAtPeak(capture, device) {
  const series = capture.series(device);
  const held = capture.modules.at(series.tick[series.peak], device);
  const owned = new Map();
  capture.modules.fqn.forEach((fqn, node) => {
    for (let c = 0; c < COUNT; c++) {
      const bytes = held.own[node * COUNT + c];
      if (bytes) owned.set(`${c} ${fqn}`, bytes);
    }
  });
  return owned;
}

/* Module by module, what B holds more or less than A. */
function changesBetween(a, b) {
  const rows = [...new Set([...a.keys(), ...b.keys()])].map((key) => {
    const before = a.get(key) ?? 0, after = b.get(key) ?? 0;
    return { category: Number(key[0]), fqn: key.slice(2), before, after, change: after - before };
  });
  return rows.filter((row) => row.change).sort((x, y) => Math.abs(y.change) - Math.abs(x.change) || natural(x.fqn, y.fqn));
}

function fillChanges(rows, all, choose) {
  const shown = all ? rows : rows.slice(0, CHANGES_SHOWN);
  const most = rows.length ? Math.abs(rows[0].change) : 1;
  find("changes").tBodies[0].replaceChildren(...shown.map((each) => {
    const row = make("tr");
    Object.assign(row.dataset, { fqn: each.fqn, category: CATEGORIES[each.category], a: each.before, b: each.after, change: each.change });
    cell(row, change(each.change), `figure ${each.change > 0 ? "more" : "less"}`);
    const bar = make("span", `difference ${each.change > 0 ? "more" : "less"}`, make("i"));
    bar.style.setProperty("--length", Math.abs(each.change) / most);
    cell(row, bar, "wide");
    cell(row, size(each.before), "figure");
    cell(row, size(each.after), "figure");
    categoryCell(row, each.category, false);
    moduleCell(row, each.fqn, choose);
    return row;
  }));
  const more = find("changes-more");
  more.hidden = shown.length === rows.length;
  more.textContent = `Show ${counted(rows.length - shown.length, "smaller change")}`;
  find("changes-none").hidden = rows.length > 0;
}
