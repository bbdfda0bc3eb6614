/* detail.js - the rank that is shown: its timeline, and its modules at its peak. */

const DETAIL = { left: 66, right: 12, top: 6, bottom: 22 };

/* For each category, the top of its area in each column of a rank; NaN in columns without data. */
function stackOf(job, index, axis) {
  const columns = job.columns(axis);
  const tops = CATEGORIES.map(() => new Float64Array(columns));
  for (let column = 0; column < columns; column++) {
    let sum = job.hasData(index, axis, column) ? 0 : NaN;
    for (const category of STACKED) tops[category][column] = sum += job.value(index, axis, category, column);
  }
  return tops;
}

/* Fills the area between two lines of steps, one part for each run of columns that have data. */
function fillSteps(context, theme, category, lower, upper, x, y) {
  const columns = upper.length;
  for (let first = 0; first < columns; ) {
    if (upper[first] !== upper[first]) {
      first++;
      continue;
    }
    let last = first;
    while (last < columns && upper[last] === upper[last]) last++;
    context.beginPath();
    for (let i = first; i < last; i++) context.lineTo(x(i), y(upper[i])), context.lineTo(x(i + 1), y(upper[i]));
    for (let i = last - 1; i >= first; i--) context.lineTo(x(i + 1), y(lower ? lower[i] : 0)),
      context.lineTo(x(i), y(lower ? lower[i] : 0));
    theme.fillCategory(context, category);
    first = last;
  }
}

function drawRankTimeline(theme, job, index, axis) {
  const { context, width, height } = prepareCanvas(find("rank-timeline").firstElementChild);
  const columns = job.columns(axis), most = Math.max(job.highest, 1);
  const right = width - DETAIL.right, bottom = height - DETAIL.bottom;
  const x = (column) => DETAIL.left + (column / columns) * (right - DETAIL.left);
  const y = (bytes) => bottom - (bytes / most) * (bottom - DETAIL.top);
  context.font = `12px ${theme.font}`;
  context.textAlign = "right";
  context.textBaseline = "middle";
  const step = byteStep(most, 5);
  for (let bytes = 0; bytes <= most; bytes += step) {
    context.fillStyle = theme.line;
    context.fillRect(DETAIL.left, y(bytes), right - DETAIL.left, 1);
    context.fillStyle = theme.soft;
    context.fillText(shortSize(bytes), DETAIL.left - 6, y(bytes));
  }
  const tops = stackOf(job, index, axis);
  STACKED.forEach((category, i) =>
    fillSteps(context, theme, category, i ? tops[STACKED[i - 1]] : null, tops[category], x, y));
  drawPeak(context, theme, job, index, axis, x, y);
  context.fillStyle = theme.soft;
  context.textAlign = "center";
  context.textBaseline = "top";
  for (const [part, text] of job.ticks(axis, right - DETAIL.left)) {
    const at = DETAIL.left + part * (right - DETAIL.left), half = context.measureText(text).width / 2;
    context.fillRect(at, bottom, 1, 4);
    context.fillText(text, Math.min(Math.max(at, DETAIL.left + half), right - half), bottom + 6);
  }
}

function drawPeak(context, theme, job, index, axis, x, y) {
  const column = job.peakColumn(index, axis);
  if (column < 0) return;
  const at = (x(column) + x(column + 1)) / 2, top = y(job.total(index, axis, column));
  context.fillStyle = theme.ink;
  context.beginPath();
  context.moveTo(at, top + 1);
  context.lineTo(at - 5, top - 6);
  context.lineTo(at + 5, top - 6);
  context.fill();
}

/* ---- words and tables ---- */

function categoryBar(bytes, most) {
  const bar = make("span", "bar");
  bar.style.setProperty("--length", most ? bytes.reduce((a, b) => a + b, 0) / most : 0);
  for (const category of STACKED) {
    if (!bytes[category]) continue;
    const part = make("i");
    part.dataset.category = CATEGORIES[category];
    part.style.flexGrow = bytes[category];
    part.title = `${CATEGORIES[category]}: ${size(bytes[category])}`;
    bar.append(part);
  }
  return bar;
}

function sumOf(bytes) {
  return bytes.reduce((a, b) => a + b, 0);
}

/* Rows of a table as {name, bytes, modules}; while like modules are together, those of equal bytes whose names differ
   only in
 * numbers are one row. */
function rowsOf(job, table, together) {
  const rows = new Map();
  for (const [number, ...bytes] of table) {
    const name = number < 0 ? "" : job.names[number], key = together ? `${mergeNumbers(name)} ${bytes.join()}` : number;
    const same = rows.get(key);
    if (!same) rows.set(key, { name, bytes, modules: [name] });
    else same.modules.push(name), (same.name = mergeNumbers(name)),
      (same.bytes = same.bytes.map((each, i) => each + bytes[i]));
  }
  const isRest = ({ name }) => name === "";
  return [...rows.values()].sort((a, b) => isRest(a) - isRest(b) || sumOf(b.bytes) - sumOf(a.bytes));
}

function showModules(job, rank, together) {
  const rows = rowsOf(job, job.tables[rank.table], together);
  const most = Math.max(...rows.map((row) => sumOf(row.bytes)), 1);
  const body = find("rank-modules").tBodies[0];
  body.replaceChildren();
  for (const { name, bytes, modules } of rows) {
    const total = sumOf(bytes), row = make("tr"), text = name ? label(name) : "all other modules";
    const module = make("td", "module", bdi(text, name ? "fqn" : ""), modules.length > 1 ? ` (${modules.length} alike)`
      : "");
    row.append(module, make("td", "wide", categoryBar(bytes, most)), make("td", "figure", size(total)),
      make("td", "figure", percent(total, rank.peak)));
    row.dataset.module = name;
    row.dataset.bytes = bytes.join();
    body.append(row);
  }
}

function showLegend(job, rank) {
  const legend = find("legend");
  legend.replaceChildren();
  const sums = CATEGORIES.map((_, i) => sumOf(job.tables[rank.table].map((row) => row[i + 1])));
  for (const category of STACKED) {
    if (!sums[category]) continue;
    const item = make("li", "", swatch(category), `${CATEGORIES[category]} ${size(sums[category])}`,
      make("span", "share", percent(sums[category], rank.peak)));
    item.dataset.category = CATEGORIES[category];
    item.dataset.bytes = sums[category];
    item.append(...makeKinds(category, rank.kinds));
    legend.append(item);
  }
}

function showRank(job, rank, together) {
  const title = find("rank-title");
  const place = rank.place ? ` (${rank.place})` : "";
  title.replaceChildren(make("strong", "", `Rank ${rank.rank}`), `${place}: peak of `,
    make("strong", "", `${rank.atLeast ? "at least " : ""}${size(rank.peak)}`), rank.device ? ` on ${rank.device}`
    : "");
  const reserved = rank.reserved ? ` · ${size(rank.reserved)} reserved at most` : "";
  const compared = rank.change === null ? "not compared" : rank.change
    ? `${change(rank.change)} compared with ${job.usual}` : `as ${job.usual}`;
  find("rank-facts").replaceChildren(`${rank.when}${reserved} · ${compared} · ${counted(rank.steps, "step")} · `,
    make("span", rank.ok ? "" : "alarm", rank.ended));
  find("rank-file").replaceChildren(`Every event of this rank:  modscope report `, bdi(rank.file));
  showLegend(job, rank);
  showModules(job, rank, together);
}
