/* page.js - the page: what is selected, and what follows from it.
 *
 * For whoever tests it, these stay as they are:
 *   window.modscopeReady      milliseconds from the page's beginning until all is drawn; undefined before
 *   window.modscopeError      what went wrong, if anything did
 *   window.modscope           the page: select(tick), selectMoment(moment), choose(node), chooseModule(fqn), capture,
 *                             timeline.drawnAt(x), timeline.range()
 *   document.body.dataset     capture (its number), device (its name), moment, tick, time (microseconds), total (bytes of the
 *                             device then), reserved, peak (the highest total of the device), peakMoment, module (the fqn that
 *                             is chosen, or ""), from and to (the view), axis, isLowerBound ("true" where figures are "at least")
 *   #before                   data-total, data-moment: before the last change of memory
 *   #legend li                data-category, data-bytes
 *   #rows .row                data-fqn, data-own, data-subtree (bytes), data-own-by, data-subtree-by (JSON by category)
 *   #blocks tbody tr          data-bytes, data-category, data-fqn, data-phase, data-step, data-age, data-outside
 *   #survivors tbody tr       data-bytes, data-category, data-fqn, data-device
 *   #peaks tbody tr           data-capture, data-device, data-bytes
 *   #changes tbody tr         data-fqn, data-category, data-a, data-b, data-change
 *   #tip tr                   data-category, data-bytes: what hovering the timeline shows
 *   #treemap                  data-boxes: how many areas are drawn
 * The address: #capture=0&device=cpu&moment=123&module=GPT.h.0 */

const BLOCKS_SHOWN = 20;

class Page {
  constructor() {
    this.sources = [...document.querySelectorAll("script[data-pack]")];
    this.captures = new Map();
    this.index = 0;
    this.node = -1;
    this.root = -1;
    this.tick = 0;
    this.hovered = null;
    this.blocks = BLOCKS_SHOWN;
    this.dirty = new Set();
    this.theme = new Theme();
    this.timeline = new Timeline(find("timeline-base"), find("timeline-over"));
    this.treemap = new Treemap(find("treemap"));
    this.tree = new Tree(find("rows"), (node) => this.choose(node));
  }

  async load(index) {
    if (!this.captures.has(index)) this.captures.set(index, new Capture(await inflate(this.sources[index].textContent)));
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

  /* ---- what is selected ---- */
  async show(index, wanted = {}) {
    const capture = await this.load(index);
    this.index = index;
    this.capture = capture;
    const { words } = capture;
    const named = words.devices.indexOf(wanted.device);
    this.device = named >= 0 && words.used.includes(named) ? named : words.main;
    this.node = capture.modules.byFqn.get(wanted.module) ?? -1;
    this.root = -1;
    const moment = wanted.moment ?? this.firstMoment();
    this.tick = capture.tickOf(moment);
    this.place = null;
    this.timeline.show(capture, this.device, this.node);
    tellCapture(this);
    this.redraw("all");
    if (this.node >= 0) this.dirty.add("reveal");
  }

  /* Another capture, with the same device and module where it has them. */
  turnTo(index, device = this.capture.words.devices[this.device]) {
    const module = this.node < 0 ? undefined : this.capture.modules.fqn[this.node];
    return this.show(index, { device, module });
  }

  /* Where memory ran out, else the peak. */
  firstMoment() {
    const { capture, device } = this;
    const oom = capture.ooms.findLast((each) => each.device === device);
    const series = capture.series(device);
    return capture.momentOf(oom ? oom.tick : series.tick[series.peak]);
  }

  select(tick, place = null) {
    this.tick = tick;
    this.place = place;
    this.redraw("moment");
  }

  selectMoment(moment) {
    this.select(this.capture.tickOf(moment));
  }

  choose(node) {
    this.node = node;
    if (node < 0) this.root = -1;
    this.timeline.show(this.capture, this.device, node);
    this.redraw("module");
  }

  chooseModule(fqn) {
    this.choose(this.capture.modules.byFqn.get(fqn) ?? -1);
    this.tree.reveal(this.node);
  }

  /* See only this module in the treemap. */
  enter(node) {
    this.root = node;
    this.redraw("module");
  }

  setDevice(device) {
    this.device = device;
    this.timeline.show(this.capture, device, this.node);
    this.tick = this.capture.tickOf(this.firstMoment());
    this.place = null;
    this.redraw("all");
  }

  goPeak() {
    const series = this.capture.series(this.device);
    this.select(series.tick[series.peak]);
    this.keepInView();
  }

  goOom() {
    const oom = this.capture.ooms.at(-1);
    if (!oom) return;
    if (oom.device !== this.device && this.capture.words.used.includes(oom.device)) this.setDevice(oom.device);
    this.select(oom.tick);
    this.keepInView();
  }

  /* To the beginning of another step. */
  goStep(by) {
    const { stepTicks } = this.capture;
    const at = lastAt(stepTicks, this.tick) + (by < 0 && stepTicks[lastAt(stepTicks, this.tick)] < this.tick ? 0 : by);
    this.select(stepTicks[Math.min(Math.max(at, 0), stepTicks.length - 1)]);
    this.keepInView();
  }

  zoom(factor) {
    if (factor) this.timeline.zoom(factor, this.timeline.placeOf(this.tick));
    else this.timeline.view = null;
    this.redraw();
  }

  keepInView() {
    const { from, to } = this.timeline.range();
    const place = this.timeline.placeOf(this.tick);
    if (place < from || place > to) this.timeline.look(place - (to - from) / 2, place + (to - from) / 2);
    this.redraw();
  }

  hover(spot, x, y) {
    this.hovered = spot;
    if (spot) showTip(momentTip(this, spot.tick), x, y);
    else hideTip();
    this.later("over");
  }

  searchFor(text) {
    this.tree.search = text.trim();
    this.tree.opened.clear();
    this.tree.render();
  }

  turnTheme() {
    const dark = document.documentElement.dataset.theme === "dark" ||
      (!document.documentElement.dataset.theme && matchMedia("(prefers-color-scheme: dark)").matches);
    this.setTheme(dark ? "light" : "dark");
  }

  setTheme(word) {
    if (word) document.documentElement.dataset.theme = word;
    else delete document.documentElement.dataset.theme;
    this.theme = new Theme();
    this.redraw("all");
  }

  /* ---- drawing, once for all that happens before the next picture ---- */
  redraw(what = "view") {
    this.later(what);
  }

  later(what) {
    if (!this.dirty.size) requestAnimationFrame(() => this.render());
    this.dirty.add(what);
  }

  render() {
    const dirty = this.dirty;
    this.dirty = new Set();
    if (!this.capture || !dirty.size) return;
    const is = (...words) => words.some((word) => dirty.has(word));
    if (is("all", "module", "view")) {
      this.timeline.draw(this.theme);
      tellView(this);
    }
    this.timeline.drawOver({ tick: this.tick, place: this.place }, this.hovered);
    if (is("all", "moment", "module")) this.renderMoment();
    if (is("reveal")) this.tree.reveal(this.node);
  }

  renderMoment() {
    const { capture, device, tick, node } = this;
    this.held = capture.modules.at(tick, device);
    tellMoment(this);
    this.tree.show(capture.modules, this.held, node);
    if (this.root >= 0 && !this.held.wholeTotal[this.root]) this.root = -1;
    this.treemap.draw(this.theme, capture.modules, this.held, this.root, node);
    find("treemap").dataset.boxes = this.treemap.boxes.length;
    tellRoot(this);
    this.fillBlocks();
    this.keepAddress();
  }

  fillBlocks() {
    const { capture, node } = this;
    find("blocks-of").textContent = node < 0 ? "" : `of ${label(capture.modules.fqn[node])}`;
    fillBlocks(capture, this.tick, this.device, node, this.blocks, (fqn) => this.chooseModule(fqn));
  }

  /* ---- the address ---- */
  keepAddress() {
    const { capture } = this;
    const words = new URLSearchParams({ capture: this.index, device: capture.words.devices[this.device], moment: capture.momentOf(this.tick) });
    if (this.node >= 0) words.set("module", capture.modules.fqn[this.node]);
    this.address = `#${words}`;
    try {
      history.replaceState(null, "", this.address);
    } catch {
      /* too often, or a name that is too long: the address stays as it was */
    }
  }

  async followAddress() {
    const words = new URLSearchParams(location.hash.slice(1));
    const number = (word, most) => {
      const value = words.get(word);
      return value !== null && /^\d{1,16}$/.test(value) && Number(value) <= most ? Number(value) : undefined;
    };
    const index = number("capture", this.sources.length - 1) ?? 0;
    const wanted = { device: words.get("device") ?? undefined, module: words.get("module") ?? undefined, moment: number("moment", 2 ** 53) };
    await this.show(index, wanted);
  }

  /* ---- several captures ---- */
  async compare() {
    find("differences").hidden = false;
    const list = this.capture.words.all;
    const selects = [find("changes-a"), find("changes-b")];
    selects.forEach((select, i) => {
      select.replaceChildren(...list.map((one, index) => new Option(one.title, index)));
      select.value = String(i);
      select.addEventListener("change", () => this.compareModules());
    });
    await this.compareModules();
  }

  async compareModules(all = false) {
    const [a, b] = await Promise.all(["changes-a", "changes-b"].map((id) => this.load(Number(find(id).value))));
    const deviceOf = (capture) => {
      const same = capture.words.devices.indexOf(a.words.devices[a.words.main]);
      return capture.words.used.includes(same) ? same : capture.words.main;
    };
    const title = (id) => bdi(find(id).selectedOptions[0].text);
    find("changes-title").replaceChildren("What changed at the peak, from ", title("changes-a"), " to ", title("changes-b"));
    const rows = changesBetween(ownAtPeak(a, a.words.main), ownAtPeak(b, deviceOf(b)));
    fillChanges(rows, all, (fqn) => this.chooseModule(fqn));
  }

  /* ---- events ---- */
  listen() {
    handleTimeline(this);
    handleScroll(this);
    handleTreemap(this);
    handleKeys(this);
    this.listenButtons();
    find("rows").addEventListener("click", (event) => this.tree.click(event));
    for (const title of document.querySelectorAll("[data-sort]")) title.addEventListener("click", () => this.sortBy(title));
    this.sortBy(document.querySelector('[data-sort="subtree"]'), true);
    new ResizeObserver(() => this.redraw("all")).observe(find("timeline"));
    new ResizeObserver(() => this.redraw("module")).observe(find("treemap-box"));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.setTheme(document.documentElement.dataset.theme));
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
    on("theme", () => this.turnTheme());
    on("help-open", () => find("help").showModal());
    on("zoom-in", () => this.zoom(0.5));
    on("zoom-out", () => this.zoom(2));
    on("zoom-all", () => this.zoom(0));
    on("go-peak", () => this.goPeak());
    on("go-oom", () => this.goOom());
    on("step-back", () => this.goStep(-1));
    on("step-on", () => this.goStep(1));
    on("chosen-off", () => this.choose(-1));
    on("own-scale", () => {
      this.timeline.ownScale = !this.timeline.ownScale;
      this.redraw();
    });
    on("open-all", () => this.tree.all(true));
    on("close-all", () => this.tree.all(false));
    on("tree-more", () => { this.tree.limit = Infinity; this.tree.render(); });
    on("blocks-more", () => { this.blocks *= 5; this.fillBlocks(); });
    on("changes-more", () => this.compareModules(true));
    on("captures", (event) => this.turnTo(Number(event.target.value)), "change");
    for (const button of find("axes").children) on_axis(this, button);
    const select = find("captures");
    find("captures-label").hidden = this.sources.length < 2;
    select.replaceChildren(...this.sources.map((source, i) => new Option(source.dataset.title, i)));
  }

  sortBy(title, keep = false) {
    const word = title.dataset.sort;
    if (!keep) this.tree.down = this.tree.sort === word ? !this.tree.down : word !== "name";
    this.tree.sort = word;
    for (const other of document.querySelectorAll("[data-sort]")) other.removeAttribute("aria-sort");
    title.setAttribute("aria-sort", this.tree.down ? "descending" : "ascending");
    if (!keep) this.tree.render();
  }
}

function on_axis(page, button) {
  button.addEventListener("click", () => {
    page.timeline.setAxis(button.dataset.axis);
    page.place = null;
    page.redraw();
  });
}

const page = new Page();
window.modscope = page;
page.start().catch((error) => {
  window.modscopeError = String(error);
  find("notes").append(make("li", "", `This browser cannot show the page: ${error}`));
  throw error;
});
