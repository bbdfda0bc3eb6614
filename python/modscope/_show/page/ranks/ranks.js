/* ranks.js - the page of the ranks of one job: its data, what is selected, and what the reader does.
 *
 * Tests may rely on: body.dataset.rank (the rank that is shown), .axis and .shade; #ranks tbody tr[data-rank];
 * #rank-modules tbody tr[data-module][data-bytes]; #legend li[data-category][data-bytes]; #pointed; #collective-totals
 * tbody tr[data-kind][data-count][data-bytes];
 * #mismatch-rows tbody tr[data-group][data-ranks]; window.modscopeReady. */

const SHOWN_ROWS = 100;
const MOST_ROWS = 5000; /* with more ranks than this, ranks without a capture have no row */

/* The ranks, and what each held in each column of both axes. Its numbers are for each rank: by clock, by category and
 * column; then by step, by category and column. */
class RanksJob {
  constructor(metadata, planes) {
    Object.assign(this, metadata);
    this.axisColumns = { time: this.axes.columns, step: this.axes.stepColumns };
    this.perRank = COUNT * (this.axes.columns + this.axes.stepColumns);
    const count = planes.length / 8;
    this.numbers = new Float64Array(count);
    for (let i = 0; i < count; i++) {
      if (planes[7 * count + i] & 128) this.numbers[i] = -1;
      else for (let byte = 6; byte >= 0; byte--) this.numbers[i] = this.numbers[i] * 256 + planes[byte * count + i];
    }
    this.rows = this.findRows();
    this.highest = Math.max(...this.ranks.map((rank) => rank.peak), 1);
    this.totals = {};
    this.shaded = {};
  }

  findRows() {
    const rows = this.ranks.map((rank, index) => ({ rank: rank.rank, index }));
    if (this.world <= MOST_ROWS)
      for (const [first, last] of this.missing) for (let rank = first; rank <= last; rank++)
        rows.push({ rank, index: -1 });
    return rows.sort((a, b) => a.rank - b.rank);
  }

  columns(axis) {
    return this.axisColumns[axis];
  }

  offset(index, axis) {
    return index * this.perRank + (axis === "step" ? COUNT * this.axes.columns : 0);
  }

  value(index, axis, category, column) {
    return this.numbers[this.offset(index, axis) + category * this.columns(axis) + column];
  }

  /* By clock, columns before the capture began have no data either. */
  hasData(index, axis, column) {
    if (this.value(index, axis, 0, column) < 0) return false;
    if (axis === "step") return true;
    const { begin, end, columns } = this.axes;
    return begin + ((column + 1) * (end - begin)) / columns > this.ranks[index].begin;
  }

  /* What each rank held in each column; NaN where there is no data. */
  totalsOf(axis) {
    if (this.totals[axis]) return this.totals[axis];
    const columns = this.columns(axis), totals = new Float64Array(this.ranks.length * columns).fill(NaN);
    for (let index = 0; index < this.ranks.length; index++)
      for (let column = 0; column < columns; column++) {
        if (!this.hasData(index, axis, column)) continue;
        let sum = 0;
        for (let category = 0; category < COUNT; category++) sum += this.value(index, axis, category, column);
        totals[index * columns + column] = sum;
      }
    return (this.totals[axis] = totals);
  }

  total(index, axis, column) {
    return this.totalsOf(axis)[index * this.columns(axis) + column];
  }

  median(axis, column) {
    const columns = this.columns(axis), totals = this.totalsOf(axis), found = [];
    for (let index = 0; index < this.ranks.length; index++) {
      const total = totals[index * columns + column];
      if (total === total) found.push(total);
    }
    return found.sort((a, b) => a - b)[found.length >> 1];
  }

  fromMedian(axis) {
    const columns = this.columns(axis);
    const medians = Array.from({ length: columns }, (_, column) => this.median(axis, column));
    return this.totalsOf(axis).map((total, i) => total - medians[i % columns]);
  }

  /* The values behind the colours, and the one that has the strongest colour. */
  shadesOf(axis, shade) {
    const key = axis + shade;
    if (this.shaded[key]) return this.shaded[key];
    const values = shade === "bytes" ? this.totalsOf(axis) : this.fromMedian(axis);
    const most = values.reduce((a, b) => (Math.abs(b) > a ? Math.abs(b) : a), 0);
    return (this.shaded[key] = { most, values: values.map((value) => (most ? value / most : value * 0)) });
  }

  shades(axis, shade) {
    return this.shadesOf(axis, shade).values;
  }

  scale(axis, shade) {
    return this.shadesOf(axis, shade).most;
  }

  peakColumn(index, axis) {
    let best = -1;
    for (let column = 0; column < this.columns(axis); column++)
      if (best < 0 ? this.hasData(index, axis, column)
        : this.total(index, axis, column) > this.total(index, axis, best)) best = column;
    return best;
  }

  stepOf(column) {
    const { first_step, per_step, steps_per_column } = this.axes;
    return first_step + (per_step ? Math.floor(column / per_step) : column * steps_per_column);
  }

  /* Where labels of the axis are, 0 to 1, and what they say. */
  ticks(axis, width) {
    const { begin, end, first_step, last_step } = this.axes, ticks = [];
    if (axis === "step") {
      const count = last_step - first_step + 1, every = Math.max(Math.ceil(decimalStep((70 * count) / width)), 1);
      for (let step = first_step; step <= last_step; step++)
        if (step % every === 0 || count === 1)
          ticks.push([(step - first_step) / count, step ? `step ${step}` : width < 100 * count ? "" : "before step 1"]);
      return ticks;
    }
    const every = decimalStep((90 * (end - begin)) / width);
    for (let time = Math.ceil(begin / every) * every; time <= end; time += every)
      ticks.push([(time - begin) / (end - begin), timeLabel(time * 1e6, every * 1e6)]);
    return ticks;
  }

  when(axis, column) {
    if (axis === "step") return this.stepOf(column) ? `in step ${this.stepOf(column)}` : "before step 1";
    const { begin, end, columns } = this.axes;
    return `at ${fixed(begin + (column * (end - begin)) / columns, 3)} s`;
  }
}

/* What is selected, and the parts of the page that show it. */
class RanksPage {
  constructor(job) {
    this.job = job;
    this.heat = new HeatMap(job);
    this.theme = new Theme();
    this.pointed = null;
    this.allRows = false;
    this.together = true; /* whether modules that are alike are one row */
    const asked = new URLSearchParams(location.hash.slice(1));
    this.firstAxis = job.isPredicted ? "step" : "time";
    this.axis = ["step", "time"].includes(asked.get("axis")) ? asked.get("axis") : this.firstAxis;
    this.shade = asked.get("shade") === "difference" ? "difference" : "bytes";
    const highest = job.ranks.reduce((a, b, i) => (b.peak > job.ranks[a].peak ? i : a), 0);
    const found = job.ranks.findIndex((rank) => String(rank.rank) === asked.get("rank"));
    this.highest = highest;
    this.index = found < 0 ? highest : found;
  }

  start() {
    find("main").hidden = false;
    this.listen();
    if (this.job.isPredicted) find("axis").firstElementChild.title = "Predicted ranks share a virtual clock";
    find("ranks-compared").textContent = `Compared with ${this.job.usual}`;
    for (const head of find("ranks").querySelectorAll("th[data-node]")) head.hidden = !this.job.hasNodes;
    this.listDifferences();
    showCollectives(this.job.collectives, (number) =>
      this.select(this.job.ranks.findIndex((rank) => rank.rank === number)));
    this.redraw();
    this.select(this.index);
  }

  redraw() {
    this.heat.draw(this.theme, this.axis, this.shade);
    this.heat.drawScale(this.axis, this.shade);
    for (const [id, value] of [["axis", this.axis], ["shade", this.shade]])
      for (const button of find(id).children) button.setAttribute("aria-checked", String(button.dataset[id] === value));
    this.drawMarks();
    drawRankTimeline(this.theme, this.job, this.index, this.axis);
    Object.assign(document.body.dataset, { axis: this.axis, shade: this.shade });
  }

  drawMarks() {
    const row = this.job.rows.findIndex((each) => each.index === this.index);
    this.heat.mark(this.theme, this.axis, row, this.pointed);
  }

  select(index) {
    if (index < 0 || index >= this.job.ranks.length) return;
    this.index = index;
    const rank = this.job.ranks[index];
    showRank(this.job, rank, this.together);
    drawRankTimeline(this.theme, this.job, index, this.axis);
    this.drawMarks();
    this.listRanks();
    document.body.dataset.rank = rank.rank;
    find("go-rank").value = rank.rank;
    find("rank-before").disabled = index === 0;
    find("rank-next").disabled = index === this.job.ranks.length - 1;
    find("heat").setAttribute("aria-valuenow", rank.rank);
    find("heat").setAttribute("aria-valuemax", this.job.world - 1);
    find("heat").setAttribute("aria-valuetext", `rank ${rank.rank}, peak ${size(rank.peak)}`);
    this.keepAddress();
  }

  keepAddress() {
    const words = [`rank=${this.job.ranks[this.index].rank}`];
    if (this.axis !== this.firstAxis) words.push(`axis=${this.axis}`);
    if (this.shade !== "bytes") words.push(`shade=${this.shade}`);
    history.replaceState(null, "", `#${words.join("&")}`);
  }

  point(place) {
    this.pointed = place;
    this.drawMarks();
    find("pointed").textContent = place ? this.describe(place) : "";
  }

  describe({ row, column }) {
    const { rank, index } = this.job.rows[row];
    if (index < 0) return `rank ${rank}: no capture`;
    const total = this.job.total(index, this.axis, column), when = this.job.when(this.axis, column);
    if (total !== total) return `rank ${rank}, ${when}: not running`;
    const more = total - this.job.median(this.axis, column);
    return `rank ${rank}, ${when}: ${size(total)}${more ? `, ${change(more)} compared with the median` : ""}`;
  }

  /* ---- tables ---- */

  listDifferences() {
    const { differences, differing, usual } = this.job;
    find("differences-title").textContent = differences.length
      ? `What ranks hold more or less than ${usual} at their peaks` : "What ranks hold more or less";
    find("differences-none").hidden = differences.length > 0;
    const compared = this.job.ranks.filter((rank) => rank.change !== null);
    if (compared.length === 1)
      find("differences-none").textContent = `Nothing is compared: only the peak of ${usual} can be.`;
    else if (compared.length < this.job.ranks.length)
      find("differences-none").textContent =
        "Every rank that can be compared holds the same in every module and category at its peak.";
    find("differences").hidden = !differences.length;
    const body = find("differences").tBodies[0];
    for (const one of differences) {
      const rows = make("ul");
      for (const [module, word, before, after, category] of one.rows) {
        const item = make("li", "", make("span", "figure", change(after - before)),
          swatch(CATEGORIES.indexOf(category)), word, bdi(module, "fqn"));
        rows.append(item);
      }
      if (one.count > one.rows.length)
        rows.append(make("li", "none",
          `${one.rows.length} of ${one.count} rows: modscope summary --json of these captures lists all.`));
      const show = makeButton("link", one.ranks);
      show.addEventListener("click", () => this.select(this.job.ranks.findIndex((rank) => rank.rank === one.first)));
      const row = make("tr", "", make("td", "", show), make("td", "figure", change(one.change)), make("td", "", rows));
      row.dataset.ranks = one.ranks;
      row.dataset.change = one.change;
      body.append(row);
    }
    if (differing > differences.length) {
      find("differences-more").hidden = false;
      find("differences-more").textContent =
        `${counted(differing - differences.length, "more group")} of ranks with smaller changes: modscope summary --json of these captures lists all.`;
    }
  }

  listRanks() {
    const body = find("ranks").tBodies[0], { rows, ranks } = this.job;
    const shown = this.allRows ? rows : rows.slice(0, SHOWN_ROWS);
    if (body.rows.length !== shown.length) {
      body.replaceChildren(...shown.map((each) => this.rowOf(each)));
      const button = find("ranks-more");
      button.hidden = shown.length === rows.length;
      button.textContent = `Show all ${rows.length} ranks`;
    }
    for (const row of body.rows) {
      if (row.dataset.rank === String(ranks[this.index].rank)) row.setAttribute("aria-current", "true");
      else row.removeAttribute("aria-current");
    }
  }

  rowOf({ rank, index }) {
    const row = make("tr");
    row.dataset.rank = rank;
    if (index < 0) {
      const cell = make("td", "none", "no capture");
      cell.colSpan = this.job.hasNodes ? 7 : 5;
      row.append(make("td", "figure", String(rank)), cell);
      return row;
    }
    const one = this.job.ranks[index];
    const number = makeButton("link", String(rank));
    row.dataset.peak = one.peak;
    row.append(
      make("td", "figure", number),
        ...(this.job.hasNodes
        ? [make("td", "", bdi(one.node)), make("td", "figure", one.local === null ? "" : String(one.local))] : []),
      make("td", "", bdi(one.device)), make("td", "figure", `${one.atLeast ? "at least " : ""}${size(one.peak)}`),
      make("td", "figure", one.change === null ? "not compared" : one.change ? change(one.change) : ""),
        make("td", "figure", String(one.steps)), make("td", one.ok ? "" : "alarm", one.ended));
    row.addEventListener("click", () => this.select(index));
    return row;
  }

  /* ---- what the reader does ---- */

  listen() {
    const heat = find("heat");
    const placeOf = (event) => {
      const box = heat.getBoundingClientRect();
      return this.heat.at(event.clientX - box.left, event.clientY - box.top, this.axis);
    };
    heat.addEventListener("pointermove", (event) => this.point(placeOf(event)));
    heat.addEventListener("pointerleave", () => this.point(null));
    heat.addEventListener("click", (event) => this.choose(placeOf(event)));
    heat.addEventListener("keydown", (event) => this.moveBy(event));
    for (const id of ["axis", "shade"])
      find(id).addEventListener("click", (event) => this.change(id, event.target.dataset[id]));
    find("go-rank").max = this.job.world - 1;
    find("go-rank").addEventListener("change", (event) =>
      this.select(this.job.ranks.findIndex((rank) => rank.rank === +event.target.value)));
    find("rank-before").addEventListener("click", () => this.select(this.index - 1));
    find("rank-next").addEventListener("click", () => this.select(this.index + 1));
    find("rank-highest").addEventListener("click", () => this.select(this.highest));
    find("ranks-more").addEventListener("click", () => ((this.allRows = true), this.listRanks()));
    find("together").addEventListener("click", () => {
      this.together = !this.together;
      find("together").setAttribute("aria-pressed", this.together);
      showModules(this.job, this.job.ranks[this.index], this.together);
    });
    find("theme").addEventListener("click", () => this.switchTheme());
    document.addEventListener("keydown", (event) => this.shortcut(event));
    window.addEventListener("resize", () => this.redraw());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.repaint());
  }

  choose(place) {
    if (!place) return;
    this.pointed = place;
    find("pointed").textContent = this.describe(place);
    if (this.job.rows[place.row].index >= 0) this.select(this.job.rows[place.row].index);
    else this.drawMarks();
  }

  change(id, value) {
    if (!value) return;
    this[id] = value;
    this.pointed = null;
    this.redraw();
    this.keepAddress();
  }

  moveBy(event) {
    const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    const columns = this.job.columns(this.axis), rows = this.job.rows.length;
    const here = this.pointed
      || { row: this.job.rows.findIndex((each) => each.index === this.index),
      column: Math.max(this.job.peakColumn(this.index, this.axis), 0) };
    let place = here;
    if (moves[event.key]) {
      const [down, right] = moves[event.key];
      place = { row: Math.min(Math.max(here.row + down, 0), rows - 1),
        column: Math.min(Math.max(here.column + right, 0), columns - 1) };
    } else if (event.key === "Home" || event.key === "End")
      place = { ...here, row: event.key === "Home" ? 0 : rows - 1 };
    else if (event.key === "Enter" || event.key === " ") this.choose(here);
    else return;
    event.preventDefault();
    this.point(place);
  }

  shortcut(event) {
    if (event.ctrlKey || event.metaKey || event.altKey
      || ["INPUT", "SELECT", "TEXTAREA"].includes(event.target.tagName)) return;
    if (event.key === "t") this.switchTheme();
    else if (event.key === "p") this.select(this.highest);
    else if (event.key === "[") this.select(this.index - 1);
    else if (event.key === "]") this.select(this.index + 1);
  }

  switchTheme() {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    this.repaint();
  }

  repaint() {
    this.theme = new Theme();
    this.redraw();
  }
}

async function startRanks() {
  const [metadata, planes] = await Promise.all(["job-data", "series-data"].map((id) => inflate(find(id).textContent)));
  const page = new RanksPage(new RanksJob(JSON.parse(new TextDecoder().decode(metadata)), planes));
  page.start();
  window.modscope = page;
  window.modscopeReady = performance.now();
}

startRanks().catch((error) => {
  window.modscopeError = String(error);
  find("facts").textContent =
    `This page cannot be shown: ${error}. It needs Chrome or Edge from 97, Firefox from 113, or Safari from 16.4.`;
  throw error;
});
