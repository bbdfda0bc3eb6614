/* page.js - what is selected on the page, and what is drawn when it changes.
 *
 * Tests rely on these names:
 *   window.modscopeReady      milliseconds from the page's beginning until everything is drawn; undefined before
 *   window.modscopeError      the error that stopped the page, if there is one
 *   window.modscope           the page: selectTick(tick), selectMoment(moment), selectModule(module),
 *                             selectModuleByName(fqn), selectGroup({by, key}), setGrouping(by), capture,
 * timeline.drawnAt(x),
 *                             timeline.groupAt(x, y), timeline.grouping, timeline.range(), timeline.labels,
 * timeline.marks
 *   document.body.dataset     capture (its number), device (its name), moment, tick, time (microseconds), total (bytes
 * of the
 *                             device at that moment), reserved, peak (the highest total of the device), peakMoment,
 * module
 *                             (the selected fqn, or ""), from and to (the range), axis, folded ("true" while what comes
 *                             before the first step is folded), isLowerBound ("true" where figures are "at least"), by
 * (the
 *                             grouping), group ("line:KEY", or "")
 *   #before                   data-total, data-moment: those before the last change of memory
 *   #legend li                data-bytes, and data-category or data-group (the key, or "others")
 *   #rows .row                data-fqn, data-own, data-subtree (bytes), data-own-by, data-subtree-by (JSON by category)
 *   #blocks tbody tr          data-bytes, data-category, data-fqn, data-phase, data-step, data-age, data-outside; if
 * lines
 *                             are known, data-file, data-line, data-function, data-operator
 *   #survivors tbody tr       data-bytes, data-category, data-fqn, data-device; data-file, data-line, data-function if
 * known
 *   #place                    data-by, data-key, data-bytes, data-count: the selected group
 *   #place-owners tbody tr    data-bytes, data-category, data-fqn
 *   #place-made-rows tbody tr data-key, data-bytes: the lines that made it
 *   #place-code span          data-line; aria-current on the marked line
 *   #peaks tbody tr           data-capture, data-device, data-bytes
 *   #changes tbody tr         data-fqn, data-category, data-a, data-b, data-change
 *   #tip tr                   data-bytes, and data-category or data-group: the tooltip of the timeline
 *   #levers tbody tr          data-key ("none", "fit-0"), data-name, data-bytes (reserved), data-fits
 *   #plan-plot .point         data-index, data-bytes (reserved), data-ms (the time of a step)
 *   #epoch-bars .batches          data-batches; class decides: with the batch that fails first, or needs most
 *   timeline.edited           the timeline of the chosen change, or null; timeline.editedColumns: what is drawn of it
 *   document.body.dataset     change: the chosen one's key
 *   #collectives              data-count, data-drawn (in the range that is shown), data-kinds
 *   #treemap                  data-boxes: how many boxes are drawn
 *   #flame-box                data-boxes, data-order, data-bytes (of what fills the width), data-root (its path, or
 * ""),
 *                             data-current (that the keys have reached), data-found (bytes that match, or "")
 *   #segments-box             data-reserved, data-allocated, data-largest-gap (bytes), data-segments, data-gaps,
 *                             data-current (JSON of the part that the keys have reached)
 *   segments                  layout, segments: what is drawn, from the moment on at which its panel is opened
 *   flame                     tree, held, boxes: what is drawn of it
 * The address: #capture=0&device=cpu&moment=123&module=GPT.h.0&by=line&group=operator:torch.relu&change=fit-0
 *              &axis=events&range=FROM-TO (coordinates; all: with what comes before the first step)&flame=line */

const BLOCKS_SHOWN = 20;

class Page {
  constructor() {
    this.sources = [...document.querySelectorAll("script[data-pack]")];
    this.captures = new Map();
    this.index = 0;
    this.module = -1; /* the selected module, or -1 */
    this.group = null; /* the selected group {by, key}, or null; never both */
    this.frame = 0; /* of the selected line's frames, the one whose source text is shown */
    this.by = "category"; /* what the areas stand for: one of GROUPINGS */
    this.root = -1; /* the module that fills the treemap, or -1 for all */
    this.tick = 0; /* the selected tick */
    this.coordinate = null; /* where in the tick the user clicked, or null */
    this.marked = null; /* the two ends of the part that a drag marks, in pixels, or null */
    this.hovered = null;
    this.blocks = BLOCKS_SHOWN;
    this.dirty = new Set();
    this.theme = new Theme();
    this.timeline = new Timeline(find("timeline-base"), find("timeline-over"));
    this.collectives = new CollectiveLane(find("collectives"));
    this.treemap = new Treemap(find("treemap"));
    this.flame = new Flame(find("flame-box"), this);
    this.segments = new SegmentPanel(this);
    this.change = null; /* the chosen one of listChanges, or null */
    this.plans = new PlanPlot(find("plan-plot"), (index) =>
      this.setChange(findChange(this.capture.metadata, `plan-${index}`)));
    this.alike = new Alike();
    this.tree = new Tree(find("rows"), this.alike, (module) => this.selectModule(module));
    this.tree.changed = () => this.drawTreemap();
  }

  async load(index) {
    if (!this.captures.has(index))
      this.captures.set(index, new Capture(await inflate(this.sources[index].textContent)));
    return this.captures.get(index);
  }

  async start() {
    this.listen();
    find("main").hidden = false;
    await this.followAddress();
    this.render();
    window.modscopeReady = performance.now();
    if (this.sources.length > 1) this.compare();
  }

  /* ---- selecting ---- */
  async show(index, wanted = {}) {
    const capture = await this.load(index);
    this.index = index;
    this.capture = capture;
    const { metadata } = capture;
    const named = metadata.devices.indexOf(wanted.device);
    this.device = named >= 0 && metadata.used.includes(named) ? named : metadata.main;
    this.module = capture.modules.byFqn.get(wanted.module) ?? -1;
    this.group = this.module < 0 ? findGroup(capture, wanted.group) : null;
    this.by = groupingsOf(capture).includes(wanted.by) ? wanted.by : "category";
    this.root = -1;
    this.timeline.show(capture, this.device, this.module, this.group);
    this.timeline.grouping = groupingFor(this, null);
    this.timeline.capacity = capacityOf(metadata);
    this.collectives.show(capture);
    this.drawChange(findChange(metadata, wanted.change));
    this.setTick(wanted.moment === undefined ? this.firstTick() : capture.tickOf(wanted.moment));
    this.showWanted(wanted);
    describeCapture(this);
    this.redraw("all");
    if (this.module >= 0) this.dirty.add("reveal");
  }

  /* Shows the axis, the range and the order of the flame graph that an address names. */
  showWanted({ axis, range, flame }) {
    if (axis === "events" || axis === "time") this.timeline.setAxis(axis);
    if (range === "all") this.timeline.showAll(false);
    else if (range) this.timeline.setRange(...range);
    if (Object.hasOwn(FLAME_INSIDE, flame ?? "")) this.flame.order = flame;
  }

  /* Shows another capture, with the same device and module where it has them. */
  switchTo(index, device = this.capture.metadata.devices[this.device]) {
    const module = this.module < 0 ? undefined : this.capture.modules.fqn[this.module];
    return this.show(index, { device, module, by: this.by, group: this.group });
  }

  /* The tick of the last failed allocation, or else of the peak. */
  firstTick() {
    const { capture, device } = this;
    const oom = capture.ooms.findLast((each) => each.device === device);
    return oom ? oom.tick : capture.series(device).peakTick;
  }

  /* The selected tick is never in the folded part. */
  setTick(tick, coordinate = null) {
    this.tick = tick;
    this.coordinate = coordinate;
    if (this.timeline.unfoldFor(tick)) this.redraw();
  }

  selectTick(tick, coordinate = null) {
    this.setTick(tick, coordinate);
    this.redraw("moment");
  }

  selectMoment(moment) {
    this.selectTick(this.capture.tickOf(moment));
  }

  selectModule(module) {
    this.module = module;
    this.group = null;
    if (module < 0) this.root = -1;
    this.timeline.show(this.capture, this.device, module, null);
    this.redraw("module");
  }

  /* Selects a group {by, key}, or none (null). `moveFocus`: to the panel, for those who use the keyboard. */
  selectGroup(group, moveFocus = false) {
    this.group = group;
    this.frame = 0;
    this.module = -1;
    this.timeline.show(this.capture, this.device, -1, group);
    this.redraw("module");
    if (moveFocus) this.redraw("focus");
  }

  setGrouping(by) {
    this.by = by;
    this.redraw("module");
  }

  nextGrouping(by) {
    const all = groupingsOf(this.capture);
    this.setGrouping(all[(all.indexOf(this.by) + by + all.length) % all.length]);
  }

  selectModuleByName(fqn) {
    this.selectModule(this.capture.modules.byFqn.get(fqn) ?? -1);
    this.tree.reveal(this.module);
  }

  setTreemapRoot(module) {
    this.root = module;
    this.redraw("module");
  }

  setDevice(device) {
    this.device = device;
    this.timeline.show(this.capture, device, this.module, this.group);
    this.setTick(this.firstTick());
    this.redraw("all");
  }

  /* Draws a change over the timeline, or none (null). */
  setChange(change) {
    const device = change && this.capture.metadata[change.part].device;
    if (change && device !== this.device && this.capture.metadata.used.includes(device)) this.setDevice(device);
    this.drawChange(change);
    this.redraw();
    this.writeAddress();
  }

  drawChange(change) {
    const { capture } = this;
    this.change = change;
    this.timeline.edited = change && new Edited(capture, capture.metadata[change.part], change.change);
  }

  /* Draws the next (1) or the previous (-1) change, or none after the last. */
  nextChange(by) {
    const changes = [null, ...listChanges(this.capture.metadata)];
    const now = changes.findIndex((each) => keyOf(each) === keyOf(this.change));
    this.setChange(changes[(now + by + changes.length) % changes.length]);
  }

  goToPeak() {
    this.selectTick(this.capture.series(this.device).peakTick);
    this.keepInView();
  }

  goToOom() {
    const oom = this.capture.ooms.at(-1);
    if (!oom) return;
    if (oom.device !== this.device && this.capture.metadata.used.includes(oom.device)) this.setDevice(oom.device);
    this.selectTick(oom.tick);
    this.keepInView();
  }

  /* Selects the beginning of the next (1) or of the previous (-1) step; the previous one may be the step's own. */
  goToStep(by) {
    const { stepTicks } = this.capture;
    const now = lastIndexUpTo(stepTicks, this.tick);
    const isWithin = stepTicks[now] < this.tick;
    const to = by < 0 && isWithin ? now : now + by;
    this.selectTick(stepTicks[Math.min(Math.max(to, 0), stepTicks.length - 1)]);
    this.keepInView();
  }

  /* ---- the view ---- */
  zoom(factor) {
    const { timeline } = this;
    if (factor > 1 && !timeline.isZoomed()) timeline.showAll(false);
    else timeline.zoom(factor, timeline.coordinateOf(this.tick));
    this.redraw();
  }

  showAll(isFolded) {
    this.timeline.showAll(isFolded);
    this.redraw();
  }

  /* Shows the whole run; the button that had the focus disappears. */
  unfold() {
    this.showAll(false);
    find("timeline").focus({ preventScroll: true });
  }

  keepInView() {
    const { from, to } = this.timeline.range();
    const at = this.timeline.coordinateOf(this.tick);
    if (at < from || at > to) this.timeline.setRange(at - (to - from) / 2, at + (to - from) / 2);
    this.redraw();
  }

  /* Marks the part of the timeline that a drag is about to zoom to; null: none. */
  markRange(from, to) {
    const had = this.marked;
    this.marked = from === null ? null : [from, to];
    if (had || this.marked) this.redraw("points");
  }

  /* `group`: the one under the pointer, or -1. `x`, `y`: in the window. */
  hover(point, x, y, group = -1) {
    this.hovered = point;
    if (point) showTooltip(momentTooltip(this, point.tick, group), x, y);
    else hideTooltip();
    this.redraw("points");
  }

  searchFor(text) {
    this.tree.search = text.trim();
    this.tree.expanded.clear();
    this.tree.render();
  }

  toggleTheme() {
    const dark = document.documentElement.dataset.theme === "dark" ||
      (!document.documentElement.dataset.theme && matchMedia("(prefers-color-scheme: dark)").matches);
    this.setTheme(dark ? "light" : "dark");
  }

  setTheme(name) {
    if (name) document.documentElement.dataset.theme = name;
    else delete document.documentElement.dataset.theme;
    this.theme = new Theme();
    this.redraw("all");
  }

  /* ---- drawing ---- */

  /* Draws a part before the next frame: "all", "view", "moment", "module" (what is selected) or "points". */
  redraw(part = "view") {
    if (!this.dirty.size) requestAnimationFrame(() => this.render());
    this.dirty.add(part);
  }

  render() {
    const dirty = this.dirty;
    this.dirty = new Set();
    if (!this.capture || !dirty.size) return;
    const is = (...parts) => parts.some((part) => dirty.has(part));
    const before = this.timeline.grouping;
    if (is("all", "module", "view")) {
      this.timeline.grouping = groupingFor(this, before);
      this.timeline.draw(this.theme);
      this.collectives.draw(this.theme, this.timeline);
      describeView(this);
      this.keepView();
    }
    this.timeline.drawPoints({ tick: this.tick, coordinate: this.coordinate }, this.hovered, this.marked);
    if (is("all", "moment", "module") || this.timeline.grouping !== before) this.renderMoment();
    if (is("focus")) find("place-title").focus();
    if (is("reveal")) this.tree.reveal(this.module);
  }

  renderMoment() {
    const { capture, device, tick, module } = this;
    find("together").setAttribute("aria-pressed", this.alike.together);
    this.held = capture.modules.heldAt(tick, device);
    describeMoment(this);
    this.alike.show(capture.modules, this.held);
    if (module >= 0) this.alike.reveal(module);
    this.tree.show(capture.modules, this.held, module);
    this.drawTreemap();
    this.flame.draw(this.theme);
    this.segments.draw();
    this.showBlocks();
    this.writeAddress();
  }

  drawTreemap() {
    const { capture, device, tick, module, held } = this, { grouping } = this.timeline;
    if (this.root >= 0 && !held.subtreeTotal[this.root]) this.root = -1;
    const parts = capture.modules.partsAt(tick, device, grouping, capture.templateMask(module, this.group));
    parts.blocks = this.root < 0 ? [] : capture.modules.blocksAt(tick, device, grouping, this.root);
    this.treemap.draw(this.theme, capture.modules, held, this.root, module, grouping, parts, this.alike);
    find("treemap").dataset.boxes = this.treemap.boxes.length;
    describeTreemapRoot(this);
  }

  /* Shows modules that are alike as one, or each. */
  setTogether(together) {
    this.alike.setTogether(together);
    this.renderMoment();
    if (this.sources.length > 1) this.compareModules();
  }

  showBlocks() {
    const { capture, module, group } = this;
    const name = group ? labelOfGroup(capture, group) : module < 0 ? "" : label(capture.modules.fqn[module]);
    find("blocks-of").textContent = name && `of ${name}`;
    fillBlocks(this, this.blocks);
  }

  /* ---- the address ---- */
  writeAddress() {
    const { capture } = this;
    const device = capture.metadata.devices[this.device];
    const parameters = new URLSearchParams({ capture: this.index, device, moment: capture.momentOf(this.tick) });
    if (this.module >= 0) parameters.set("module", capture.modules.fqn[this.module]);
    if (this.by !== "category") parameters.set("by", this.by);
    if (this.group) parameters.set("group", `${this.group.by}:${this.group.key}`);
    if (capacityOf(capture.metadata)) parameters.set("change", keyOf(this.change));
    const { timeline } = this, { from, to } = timeline.range();
    if (timeline.axis !== "time") parameters.set("axis", timeline.axis);
    if (timeline.isZoomed()) parameters.set("range", `${Math.round(from)}-${Math.round(to)}`);
    else if (timeline.fold && !timeline.isFolded) parameters.set("range", "all");
    if (this.flame.order !== "module") parameters.set("flame", this.flame.order);
    this.address = `#${parameters}`;
    try {
      history.replaceState(null, "", this.address);
    } catch {
      /* The browser refuses too many changes and addresses that are too long. The old address is kept. */
    }
  }

  /* Writes the address when the view has not changed for a moment: browsers refuse too many changes. */
  keepView() {
    clearTimeout(this.writing);
    this.writing = setTimeout(() => this.writeAddress(), 200);
  }

  async followAddress() {
    const parameters = new URLSearchParams(location.hash.slice(1));
    const number = (name, most) => {
      const value = parameters.get(name);
      return value !== null && /^\d{1,16}$/.test(value) && Number(value) <= most ? Number(value) : undefined;
    };
    const text = (name) => parameters.get(name) ?? undefined;
    const index = number("capture", this.sources.length - 1) ?? 0;
    const [, by, key] = text("group")?.match(/^(\w+):(.*)$/s) ?? [];
    const [, from, to] = text("range")?.match(/^(\d{1,16})-(\d{1,16})$/) ?? [];
    const range = Number(from) < Number(to) ? [Number(from), Number(to)] : text("range");
    await this.show(index, {
      device: text("device"), module: text("module"), moment: number("moment", 2 ** 53), change: text("change"),
        by: text("by"), group: { by, key },
      axis: text("axis"), range: range === "all" || Array.isArray(range) ? range : undefined, flame: text("flame"),
    });
  }

  /* ---- several captures ---- */
  async compare() {
    find("differences").hidden = false;
    const captures = this.capture.metadata.all;
    const selects = [find("changes-a"), find("changes-b")];
    selects.forEach((select, i) => {
      select.replaceChildren(...captures.map((one, index) => new Option(one.title, index)));
      select.value = String(i);
      select.addEventListener("change", () => this.compareModules());
    });
    await this.compareModules();
  }

  async compareModules(showAll = false) {
    const [a, b] = await Promise.all(["changes-a", "changes-b"].map((id) => this.load(Number(find(id).value))));
    const deviceOf = (capture) => {
      const same = capture.metadata.devices.indexOf(a.metadata.devices[a.metadata.main]);
      return capture.metadata.used.includes(same) ? same : capture.metadata.main;
    };
    const title = (id) => bdi(find(id).selectedOptions[0].text);
    find("changes-title").replaceChildren("Difference at the peak, from ", title("changes-a"), " to ",
      title("changes-b"));
    const rows = changesBetween(ownAtPeak(a, a.metadata.main), ownAtPeak(b, deviceOf(b)));
    fillChanges(this.alike.together ? foldChanges(rows) : rows, showAll, (fqn) => this.selectModuleByName(fqn));
  }

  /* ---- events ---- */
  listen() {
    handleTimeline(this);
    handleScrollBar(this);
    handleCollectives(this);
    handleTreemap(this);
    handleFlame(this);
    handleSegments(this);
    handleKeys(this);
    this.listenButtons();
    find("rows").addEventListener("click", (event) => this.tree.handleClick(event));
    for (const title of document.querySelectorAll("[data-sort]"))
      title.addEventListener("click", () => this.sortBy(title));
    this.sortBy(document.querySelector('[data-sort="subtree"]'), true);
    new ResizeObserver(() => this.redraw("all")).observe(find("timeline"));
    new ResizeObserver(() => this.redraw("module")).observe(find("treemap-box"));
    new ResizeObserver(() => this.redraw()).observe(find("plan-plot"));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () =>
      this.setTheme(document.documentElement.dataset.theme));
    addEventListener("hashchange", () => location.hash !== this.address && this.followAddress());
    let before;
    addEventListener("beforeprint", () => {
      before = document.documentElement.dataset.theme;
      this.setTheme("light");
      this.render();
    });
    addEventListener("afterprint", () => this.setTheme(before));
  }

  listenButtons() {
    const on = (id, call, event = "click") => find(id).addEventListener(event, call);
    on("theme", () => this.toggleTheme());
    on("help-open", () => find("help").showModal());
    on("zoom-in", () => this.zoom(0.5));
    on("zoom-out", () => this.zoom(2));
    on("zoom-all", () => this.showAll(false));
    on("zoom-steps", () => this.showAll(true));
    on("unfold", () => this.unfold());
    on("go-peak", () => this.goToPeak());
    on("go-oom", () => this.goToOom());
    on("step-back", () => this.goToStep(-1));
    on("step-on", () => this.goToStep(1));
    for (const id of ["selection-clear", "place-clear"]) on(id, () => this.selectModule(-1));
    for (const id of ["own-scale", "place-scale"]) on(id, () => {
      this.timeline.ownScale = !this.timeline.ownScale;
      this.redraw();
    });
    for (const button of find("groupings").children)
      button.addEventListener("click", () => this.setGrouping(button.dataset.by));
    for (const [id, isExpanded] of [["open-all", true], ["close-all", false]]) on(id, () => {
      this.tree.setAllExpanded(isExpanded);
      this.setTogether(!isExpanded);
    });
    on("together", () => this.setTogether(!this.alike.together));
    on("tree-more", () => { this.tree.limit = Infinity; this.tree.render(); });
    on("blocks-more", () => { this.blocks *= 5; this.showBlocks(); });
    on("changes-more", () => this.compareModules(true));
    on("captures", (event) => this.switchTo(Number(event.target.value)), "change");
    for (const button of find("axes").children)
      button.addEventListener("click", () => this.setAxis(button.dataset.axis));
    const select = find("captures");
    find("captures-label").hidden = this.sources.length < 2;
    select.replaceChildren(...this.sources.map((source, i) => new Option(source.dataset.title, i)));
  }

  setAxis(axis) {
    this.timeline.setAxis(axis);
    this.coordinate = null;
    this.redraw();
  }

  /* Sorts by a column; a second click on its title reverses the order. */
  sortBy(title, keepDirection = false) {
    const column = title.dataset.sort;
    if (!keepDirection) this.tree.isDescending = this.tree.sort === column ? !this.tree.isDescending
      : column !== "name";
    this.tree.sort = column;
    for (const other of document.querySelectorAll("[data-sort]")) other.removeAttribute("aria-sort");
    title.setAttribute("aria-sort", this.tree.isDescending ? "descending" : "ascending");
    if (!keepDirection) this.tree.render();
  }
}

const page = new Page();
window.modscope = page;
page.start().catch((error) => {
  window.modscopeError = String(error);
  find("notes").append(make("li", "", `This browser cannot show the page: ${error}`));
  throw error;
});
