/* segments.js - the picture of segments: what the allocator holds at a moment, block by block, with the gaps. Nothing
 * is decoded or laid out before its panel is opened.
 *
 * All segments have the same scale. Positions are counted along the rows, as in text: position p is in row
 * floor(p / width), at p % width. */

const SEGMENT_ROW = 24, SEGMENT_HEIGHT = 19; /* from row to row, and of a row itself, in pixels */
const SEGMENT_GAP = 4, SEGMENT_NARROWEST = 3; /* between segments, and of a segment */
const SEGMENT_ROWS = 16; /* at most, but for those that gaps between segments take */
const SEGMENTS_LISTED = 100;

class SegmentPanel {
  constructor(page) {
    this.page = page;
    this.panel = find("segments-panel");
    this.box = find("segments-box");
    this.canvas = this.box.querySelector("canvas");
    this.layouts = new Map(); /* by the element that has the data */
    this.layout = null;
    this.segments = [];
    this.current = null; /* the part that the keys have reached */
  }

  get source() {
    return document.querySelector(`script[data-layout="${this.page.index} ${this.page.device}"]`);
  }

  /* Draws the page's moment, if the panel is open. */
  draw() {
    const reason = this.page.capture.metadata.no_layouts?.[this.page.device], { source } = this;
    find("segments").hidden = !reason && !source;
    if (!this.panel.open || find("segments").hidden) return;
    for (const id of ["segments-box", "segments-how", "segments-list", "segments-now", "segments-model"])
      find(id).hidden = Boolean(reason);
    if (reason) find("segments-text").textContent = `There is no picture of segments: ${reason}`;
    else this.drawFrom(source);
  }

  async drawFrom(source) {
    if (!this.layouts.has(source)) {
      const { capture, device } = this.page;
      const columns = inflate(source.textContent);
      this.layouts.set(source, columns.then((bytes) => new Layout(capture, device, bytes)));
    }
    try {
      const layout = await this.layouts.get(source);
      if (source === this.source) this.show(layout);
    } catch (error) {
      find("segments-text").textContent = `The picture cannot be drawn: ${error.message}.`;
    }
  }

  show(layout) {
    const { tick } = this.page, isNew = layout !== this.layout || tick !== this.tick;
    if (isNew) Object.assign(this, { layout, tick, segments: layout.at(tick), current: null });
    this.parts = this.segments.flatMap((segment) => segment.parts);
    this.describe();
    if (find("segments-list").open) this.list();
    this.render();
  }

  /* ---- drawing ---- */

  /* Gives each segment its position, and returns how many rows there are. */
  place(width) {
    const total = this.segments.reduce((sum, segment) => sum + segment.bytes, 0);
    const rows = Math.min(Math.max(2 * this.segments.length, Math.ceil(this.parts.length / 8)), SEGMENT_ROWS);
    this.scale = (rows * width) / total;
    let at = 0;
    for (const segment of this.segments) {
      const length = Math.max(segment.bytes * this.scale, SEGMENT_NARROWEST);
      const left = width - (at % width);
      if (length > left && (length < width / 2 || left < width / 8)) at += left;
      segment.position = at;
      segment.length = length;
      at += length + SEGMENT_GAP;
    }
    return Math.ceil((at - SEGMENT_GAP) / width);
  }

  /* The rectangles of a part of a segment, one for each row. */
  rectangles({ position, length, bytes: whole }, at, bytes, trim = 0) {
    const { width } = this, found = [];
    let from = position + (at / whole) * length;
    const to = position + ((at + bytes) / whole) * length;
    while (to - from > 1e-6) {
      const row = Math.floor((from + 1e-6) / width), end = Math.min(to, (row + 1) * width);
      const pixels = end - from;
      found.push([from - row * width, row * SEGMENT_ROW + 2, pixels > 3 && end === to ? pixels - trim : pixels,
        SEGMENT_HEIGHT]);
      from = end;
    }
    return found;
  }

  render() {
    const { theme, timeline, capture, module, group } = this.page, { grouping } = timeline;
    this.width = this.canvas.getBoundingClientRect().width;
    const rows = this.segments.length && this.width ? this.place(this.width) : 0;
    this.canvas.style.height = `${rows * SEGMENT_ROW}px`;
    this.canvas.hidden = !rows;
    if (!rows) return;
    const { context } = prepareCanvas(this.canvas);
    const mask = capture.templateMask(module, group), fills = new Map();
    for (const part of this.parts) {
      const template = capture.template[part.lifetime];
      const key = part.lifetime < 0 ? "1 -1"
        : `${mask && !mask[template] ? 0.25 : 1} ${grouping.templateGroup[template]}`;
      if (!fills.has(key)) fills.set(key, []);
      fills.get(key).push(...this.rectangles(part.segment, part.at, part.bytes, 0.75));
    }
    for (const [key, rectangles] of fills) this.fillTogether(context, theme, grouping, key, rectangles);
    context.globalAlpha = 1;
    this.outlineSegments(context, theme);
    this.outlineCurrent(context, theme);
  }

  /* A frame around each segment, which is open where the segment goes on in another row. */
  outlineSegments(context, theme) {
    context.strokeStyle = theme.ink;
    context.lineWidth = 1;
    context.beginPath();
    for (const segment of this.segments) this.rectangles(segment, 0, segment.bytes).forEach((rectangle, i, all) => {
      const [x, y, width, height] = rectangle, left = x + 0.5, right = Math.max(x + width - 0.5, left);
      for (const edge of [y - 0.5, y + height + 0.5]) context.moveTo(x, edge), context.lineTo(x + width, edge);
      for (const [edge, isEnd] of [[left, i === 0], [right, i === all.length - 1]])
        if (isEnd) context.moveTo(edge, y - 1), context.lineTo(edge, y + height + 1);
    });
    context.stroke();
  }

  fillTogether(context, theme, grouping, key, rectangles) {
    const [alpha, group] = key.split(" ").map(Number);
    context.globalAlpha = alpha;
    context.beginPath();
    for (const rectangle of rectangles) context.rect(...rectangle);
    if (group >= 0) return grouping.fill(theme, context, group);
    theme.fill(context, theme.panel, theme.faintHatch);
  }

  outlineCurrent(context, theme) {
    if (!this.current || this.box !== document.activeElement) return;
    context.strokeStyle = theme.accent;
    context.lineWidth = 3;
    for (const [x, y, width, height] of this.rectangles(this.current.segment, this.current.at, this.current.bytes))
      context.strokeRect(x, y, Math.max(width, 2), height);
  }

  /* ---- in words ---- */
  describe() {
    const { segments, tick } = this, { capture, device } = this.page;
    const sum = (key) => segments.reduce((all, segment) => all + segment[key], 0);
    const gaps = this.parts.filter((part) => part.lifetime < 0);
    this.largestGap = gaps.reduce((largest, gap) => (gap.bytes > (largest?.bytes ?? 0) ? gap : largest), null);
    const reserved = sum("bytes"), allocated = sum("allocated");
    find("segments-text").textContent = !reserved ? "Nothing is reserved at this moment."
      : `${size(reserved)} reserved in ${counted(segments.length, "segment")}, ${size(allocated)} of it allocated; `
        + (gaps.length ? `the largest of ${counted(gaps.length, "gap")} is ${size(this.largestGap.bytes)}.`
          : "there is no gap.");
    const recorded = capture.reservedAt(tick, device);
    find("segments-model").textContent = "Where blocks lie is what modscope's model of torch's allocator says"
      + (recorded === reserved ? ", which reserves as much as the capture says." : recorded
        ? `; at this moment it differs from the run, which had ${size(recorded)} reserved.` : ".");
    Object.assign(this.box.dataset, { reserved, allocated, segments: segments.length, gaps: gaps.length,
      largestGap: this.largestGap?.bytes ?? 0 });
    this.describeCurrent();
  }

  describeCurrent() {
    const { current } = this;
    find("segments-now").textContent = current ? this.sentenceOf(current) : "";
    this.box.dataset.current = current ? JSON.stringify({ at: current.at, bytes: current.bytes,
      lifetime: current.lifetime, segment: this.segments.indexOf(current.segment) }) : "";
  }

  /* What a block is: {bytes (that the program asked for), category, module, fqn, template}. */
  blockOf({ lifetime }) {
    const { capture } = this.page, template = capture.template[lifetime];
    const module = capture.modules.templateModule[template];
    return { bytes: capture.templateBytes[template], category: capture.templateCategory[template], module,
      fqn: capture.modules.fqn[module], template };
  }

  /* "in segment 2 of 5 (20.00 MiB, 4.00 MiB free), 2.00 MiB from its beginning" */
  whereIs({ segment, at }) {
    const free = segment.bytes - segment.allocated;
    return `in segment ${this.segments.indexOf(segment) + 1} of ${this.segments.length} (${size(segment.bytes)}, `
      + `${free ? `${size(free)} free` : "full"}), ${at ? `${size(at)} from` : "at"} its beginning`;
  }

  sentenceOf(part) {
    if (part.lifetime < 0) return `Gap: ${size(part.bytes)} ${this.whereIs(part)}.`;
    const { category, fqn } = this.blockOf(part);
    return `${CATEGORIES[category]} of ${label(fqn)}: ${size(part.bytes)} ${this.whereIs(part)}.`;
  }

  tooltip(part) {
    const where = make("div", "note", this.whereIs(part));
    if (part.lifetime < 0) return [make("div", "total", `Gap of ${size(part.bytes)}`), where];
    const { bytes, category, fqn, template } = this.blockOf(part), { capture } = this.page;
    const parts = [make("div", "total", bdi(label(fqn))),
      make("div", "", make("span", "category", swatch(category), `${CATEGORIES[category]} ${size(bytes)}`))];
    if (part.bytes > bytes) parts.push(make("div", "", `in a block of ${size(part.bytes)}`));
    if (capture.stacks.areKnown)
      parts.push(make("div", "note",
        bdi(shorten(clean(capture.stacks.place(capture.templateStack[template]).describe())))));
    parts.push(make("div", "note", `allocated in step ${capture.allocationOf(part.lifetime).step}`), where);
    return parts;
  }

  /* The table: a row for each of the largest segments, in the order in which they are drawn. */
  list() {
    const select = (fqn) => this.page.selectModuleByName(fqn);
    const rows = this.segments.slice(0, SEGMENTS_LISTED).map((segment, i) => {
      const row = make("tr"), gap = Math.max(0, ...segment.parts.map((part) => (part.lifetime < 0 ? part.bytes : 0)));
      Object.assign(row.dataset,
        { bytes: segment.bytes, allocated: segment.allocated, blocks: segment.blocks, largestGap: gap });
      addCell(row, String(i + 1));
      const figures = [size(segment.bytes), size(segment.allocated), String(segment.blocks), gap ? size(gap) : "none"];
      for (const text of figures) addCell(row, text, "figure");
      const owner = this.ownerOf(segment);
      if (owner === null) addCell(row, "nobody: it is free");
      else addModuleCell(row, owner, select);
      return row;
    });
    find("segments-list").querySelector("tbody").replaceChildren(...rows);
    find("segments-more").hidden = this.segments.length <= SEGMENTS_LISTED;
    find("segments-more").textContent = `and ${this.segments.length - SEGMENTS_LISTED} smaller segments`;
  }

  /* The module that has most of a segment, or null. */
  ownerOf(segment) {
    const bytes = new Map();
    for (const part of segment.parts) if (part.lifetime >= 0) {
      const { fqn } = this.blockOf(part);
      bytes.set(fqn, (bytes.get(fqn) ?? 0) + part.bytes);
    }
    return [...bytes].reduce((most, each) => (most && most[1] >= each[1] ? most : each), null)?.[0] ?? null;
  }

  /* ---- pointer and keys ---- */
  partAt(x, y) {
    const position = Math.floor(y / SEGMENT_ROW) * this.width + Math.min(x, this.width - 1e-3);
    const segment = this.segments.findLast((each) => each.position <= position);
    if (!segment || position >= segment.position + segment.length) return null;
    const at = ((position - segment.position) / segment.length) * segment.bytes;
    return segment.parts.findLast((part) => part.at <= at) ?? null;
  }

  goTo(part) {
    if (!part) return;
    this.current = part;
    this.describeCurrent();
    this.render();
  }

  select(part) {
    if (!part || part.lifetime < 0) return;
    const { module } = this.blockOf(part);
    this.page.selectModule(module === this.page.module ? -1 : module);
    if (this.page.module >= 0) this.page.tree.reveal(module);
  }

  /* Handles a key; returns whether the picture uses it. */
  handleKey(event) {
    const { parts, segments, current } = this;
    if (!parts?.length) return false;
    const step = (all, now, by) => all[now < 0 ? 0 : Math.min(Math.max(now + by, 0), all.length - 1)];
    const toPart = (by) => this.goTo(step(parts, parts.indexOf(current), by));
    const toSegment = (by) => this.goTo(step(segments, segments.indexOf(current?.segment), by).parts[0]);
    const actions = {
      ArrowRight: () => toPart(1), ArrowLeft: () => toPart(-1), ArrowDown: () => toSegment(1),
      ArrowUp: () => toSegment(-1), Home: () => this.goTo(parts[0]), End: () => this.goTo(parts.at(-1)),
      Enter: () => this.select(current), g: () => this.goTo(this.largestGap),
    };
    if (!Object.hasOwn(actions, event.key)) return false;
    actions[event.key]();
    return true;
  }
}

function handleSegments(page) {
  const { segments } = page, { box, canvas } = segments;
  const partUnder = (event) => {
    const { left, top } = canvas.getBoundingClientRect();
    return segments.partAt(event.clientX - left, event.clientY - top);
  };
  const redraw = () => segments.panel.open && segments.layout && segments.render();
  segments.panel.addEventListener("toggle", () => segments.draw());
  find("segments-list").addEventListener("toggle", () => find("segments-list").open && segments.list());
  canvas.addEventListener("pointermove", (event) => {
    const part = partUnder(event);
    if (part) showTooltip(segments.tooltip(part), event.clientX, event.clientY);
    else hideTooltip();
  });
  canvas.addEventListener("pointerleave", hideTooltip);
  canvas.addEventListener("click", (event) => segments.select(partUnder(event)));
  for (const name of ["focus", "blur"]) box.addEventListener(name, redraw);
  new ResizeObserver(redraw).observe(box);
}
