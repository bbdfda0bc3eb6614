/* flame.js - the flame graph of a moment: each rectangle lies below what it is inside, and is as wide as its bytes. */

const FLAME_ROW = 20;      /* height of a row in pixels */
const FLAME_NARROWEST = 3; /* Rectangles that would be narrower share one. */
const FLAME_TITLED = 28;   /* A narrower rectangle has no text. */

const FLAME_INSIDE = {
  module: "modules, then the lines that made what they own, the outermost first, then the operator",
  layers: "modules, of which those whose names differ only in numbers are one (*), then the lines that made what they own, the outermost first, then the operator",
  line: "the line that it called, then the operator, then the module that owns what was made",
};
const FLAME_LINES = [ /* by how many frames the deepest stack has */
  "No lines were recorded. They are recorded by default, but not with --stacks 0 (in Python, stacks=0), nor where modscope doctor says that blocks have no lines.",
  "Only the innermost line was recorded: modscope run --stacks 8 records those around it too.",
];

/* As much of the beginning as fits, if that is worth showing. */
function cutEnd(text, fits) {
  for (let kept = Math.min(text.length - 1, 40); kept >= 2; kept--) if (fits(`${text.slice(0, kept)}…`))
    return `${text.slice(0, kept)}…`;
  return "";
}

/* As much of the beginning of a function's name as fits before the number of a line, which says more than the name's
 * end; "" if that is too little. */
function cutBeforeNumber(name, line, fits) {
  for (let kept = Math.min(name.length - 1, 40); kept >= 3; kept--) if (fits(`${name.slice(0, kept)}…:${line || "?"}`))
    return `${name.slice(0, kept)}…:${line || "?"}`;
  return "";
}

/* The end of a module's name, from the last part that is no number: h.0 of GPT.h.0. */
function lastNamedPart(name) {
  const parts = name.split(".");
  let at = parts.length - 1;
  while (at && /^(\d+|\*)$/.test(parts[at])) at--;
  return parts.slice(at).join(".");
}

/* Between two rectangles a gap is left. */
function widthOfGround({ width }) {
  return Math.max(width - (width > 4 ? 1 : 0.3), 0.3);
}

class Flame {
  constructor(box, page) {
    this.box = box;
    this.page = page;
    this.canvas = box.querySelector("canvas");
    this.order = "module";
    this.trees = new Map(); /* by order, of the capture that is shown */
    this.zoomed = -1;   /* the node that fills the width, or -1 for all */
    this.current = -1;  /* the node that the keys have reached, or -1 for the top row */
    this.followed = -1; /* the module that was selected when it was drawn last */
    this.text = "";     /* what is searched for */
    this.boxes = [];    /* {node, x, y, width, bytes, others}; others: how many narrow ones share it, or 0 */
  }

  get tree() {
    const { capture } = this.page;
    if (this.capture !== capture) {
      this.capture = capture;
      this.trees.clear();
      this.followed = null;
    }
    if (!this.trees.has(this.order)) this.trees.set(this.order, new FlameTree(capture, this.order));
    return this.trees.get(this.order);
  }

  /* ---- what is shown ---- */

  /* Draws the page's moment. It follows the selected module: by module it fills the width, in the other orders only
   * what it owns is drawn. */
  draw(theme) {
    const { tree, page } = this;
    if (page.module !== this.followed) this.follow(page.module);
    const mask = this.order !== "module" && page.module >= 0 ? page.capture.modules.subtreeMask(page.module) : null;
    this.theme = theme;
    this.held = tree.heldAt(page.tick, page.device, mask);
    this.render();
  }

  follow(module) {
    this.followed = module;
    this.zoomed = this.order === "module" ? module : -1;
    this.current = this.zoomed;
  }

  setOrder(order) {
    this.order = order;
    this.follow(this.page.module);
    this.page.redraw("module");
  }

  /* The node that fills the width: the zoomed one, or the nearest around it that holds something now. */
  get root() {
    let root = this.zoomed;
    while (root >= 0 && !this.held.total[root]) root = this.tree.parent[root];
    return root;
  }

  bytesOf(node) {
    return node < 0 ? this.held.whole : this.held.total[node];
  }

  /* Zooms to a node; a module becomes the selected one, as in the treemap. */
  zoomTo(node) {
    const { tree, page } = this;
    this.zoomed = this.current = node;
    const module = node < 0 ? -1 : tree.module[node];
    const selects = this.order === "layers" ? node < 0 : node < 0 || module >= 0;
    if (selects && module !== page.module) {
      if (this.order !== "module") this.zoomed = this.current = -1;
      this.followed = module;
      page.selectModule(module);
      page.tree.reveal(module);
    } else this.render();
  }

  zoomOut() {
    this.zoomTo(this.zoomed < 0 ? -1 : this.tree.parent[this.zoomed]);
  }

  searchFor(text) {
    this.text = text.trim();
    this.render();
  }

  /* ---- drawing ---- */
  render() {
    const { tree, held, root } = this;
    this.found = this.text ? tree.search(this.text, held, root) : null;
    const { width } = this.box.getBoundingClientRect();
    const around = [];
    for (let node = root; node >= 0; node = tree.parent[node]) around.unshift(node);
    this.boxes = [this.boxFor(-1, 0, 0, width), ...around.map((node, i) => this.boxFor(node, 0, i + 1, width))];
    if (this.held.whole) this.placeBelow(root, 0, around.length + 1, width);
    const rows = 1 + this.boxes.reduce((most, box) => Math.max(most, box.row), 0);
    this.canvas.style.height = `${rows * FLAME_ROW + 1}px`;
    this.paint(around.length);
    this.describe();
  }

  boxFor(node, x, row, width, bytes = this.bytesOf(node), others = 0) {
    return { node, x, row, y: row * FLAME_ROW, width, bytes, others };
  }

  placeBelow(node, x, row, width) {
    const { tree, held } = this;
    const scale = width / this.bytesOf(node);
    const children = tree.childrenOf(node, held);
    for (let i = 0; i < children.length; i++) {
      const child = children[i], part = held.total[child] * scale;
      if (part < FLAME_NARROWEST) {
        const bytes = children.slice(i).reduce((sum, each) => sum + held.total[each], 0);
        return void this.boxes.push(this.boxFor(child, x, row, bytes * scale, bytes, children.length - i));
      }
      this.boxes.push(this.boxFor(child, x, row, part));
      this.placeBelow(child, x, row + 1, part);
      x += part;
    }
  }

  paint(around) {
    const { theme } = this;
    const { context, width } = prepareCanvas(this.canvas);
    this.context = context;
    this.fills = new Map(); /* rectangles to be filled with a pattern, by "alpha category": one fill of many is fast */
    context.textBaseline = "middle";
    context.textAlign = "left";
    for (const box of this.boxes) this.paintGround(box, box.row < around);
    for (const [key, rectangles] of this.fills) this.fillTogether(key, rectangles);
    for (const box of this.boxes) this.paintText(box);
    context.globalAlpha = 1;
    const current = this.boxes.find((box) => box.node === this.current && !box.others);
    if (!current || this.box !== document.activeElement) return;
    context.strokeStyle = theme.accent;
    context.lineWidth = 2;
    context.strokeRect(current.x + 1, current.y + 1, Math.max(Math.min(current.width, width) - 2, 1), FLAME_ROW - 1);
  }

  isFound({ node, others }) {
    return this.found !== null && node >= 0 && !others && this.found.matches[node] === 1;
  }

  fillLater(category, rectangle) {
    const key = `${this.context.globalAlpha} ${category}`;
    if (!this.fills.has(key)) this.fills.set(key, []);
    this.fills.get(key).push(rectangle);
  }

  fillTogether(key, rectangles) {
    const { context, theme } = this;
    const [alpha, category] = key.split(" ").map(Number);
    context.globalAlpha = alpha;
    context.beginPath();
    for (const rectangle of rectangles) context.rect(...rectangle);
    if (category >= 0) return theme.fillCategory(context, category);
    context.fillStyle = theme.pattern(context, theme.faintHatch);
    context.fill();
  }

  /* A pale ground of the largest category's colour, and at the bottom a strip with the shares of all. */
  paintGround(box, isAround) {
    const { context, theme } = this;
    const { x, y, node, others } = box;
    const width = widthOfGround(box), height = FLAME_ROW - 1;
    const alpha = this.found && !this.isFound(box) ? 0.35 : isAround ? 0.6 : 1;
    context.globalAlpha = alpha;
    context.fillStyle = theme.panel;
    context.fillRect(x, y + 1, width, height);
    if (others) return this.fillLater(-1, [x, y + 1, width, height]);
    const bytes = this.categoriesOf(node), whole = this.bytesOf(node) || 1;
    context.globalAlpha = 0.3 * alpha;
    context.fillStyle = theme.categories[bytes.indexOf(Math.max(...bytes))];
    context.fillRect(x, y + 1, width, height);
    context.globalAlpha = alpha;
    let at = x;
    for (const c of STACKED) {
      if (!bytes[c]) continue;
      const part = (bytes[c] / whole) * width;
      this.fillLater(c, [at, y + height - 3, part, 4]);
      at += part;
    }
  }

  paintText(box) {
    const { context, theme, tree } = this;
    const { x, y, node } = box;
    const width = widthOfGround(box), isFound = this.isFound(box);
    if (isFound) {
      context.globalAlpha = 1;
      context.strokeStyle = theme.ink;
      context.lineWidth = 1.5;
      context.strokeRect(x + 0.75, y + 1.75, Math.max(width - 1.5, 0.5), FLAME_ROW - 2.5);
    }
    if (box.width < FLAME_TITLED) return;
    context.globalAlpha = this.found && !isFound ? 0.6 : 1;
    context.font = `${node >= 0 && tree.kind[node] !== "module" ? "" : "600 "}11px ${theme.font}`;
    context.fillStyle = theme.ink;
    context.fillText(this.titleOf(box, width - 8), x + 4, y + FLAME_ROW / 2 - 0.5);
  }

  categoriesOf(node) {
    return node < 0 ? this.held.sums : this.held.bytes.subarray(node * COUNT, (node + 1) * COUNT);
  }

  /* The name, with bytes and share where they fit, else as much of it as fits. */
  titleOf(box, room) {
    const { context } = this;
    const fits = (text) => context.measureText(text).width <= room;
    if (box.others) return fits(`+${box.others}`) ? `+${box.others}` : "";
    const names = this.namesOf(box.node).map(shorten), figures = [size(box.bytes), percent(box.bytes, this.held.whole)];
    const titles = [`${names[0]}   ${figures.join("  ")}`, `${names[0]}   ${figures[1]}`, ...names];
    const title = titles.find(fits) ?? cutEnd(names.at(-1), fits), frame = this.tree.frame[box.node];
    return frame && (title === names.at(-1) || title.endsWith("…")) ? cutBeforeNumber(names.at(-1), frame.line, fits)
      || title : title;
  }

  /* The whole name, and shorter ones for narrow rectangles. */
  namesOf(node) {
    const { tree } = this;
    const name = this.nameOf(node), last = (text) => text.split(".").pop();
    if (node < 0) return [name];
    if (this.isGlobal(node)) return [name, "Global"];
    const frame = tree.frame[node];
    if (!frame) return [name, lastNamedPart(name)];
    const short = clean(last(frame.function));
    return [name, `${short}:${frame.line || "?"}`, short];
  }

  isGlobal(node) {
    return this.tree.kind[node] === "module" && this.tree.fqn[node] === "Global";
  }

  nameOf(node) {
    const { tree } = this;
    if (node < 0) return this.topName;
    if (tree.kind[node] === "module" && (this.order === "line" || tree.parent[node] < 0)) return tree.fqnOf(node);
    return clean(tree.name[node]) || '""';
  }

  get topName() {
    const { page } = this;
    const device = clean(page.capture.metadata.devices[page.device]);
    return this.order !== "module" && page.module >= 0 ? `${label(page.capture.modules.fqn[page.module])} on ${device}`
      : `All of ${device}`;
  }

  /* ---- in words ---- */
  describe() {
    const { tree, held, root, found } = this;
    const shown = this.bytesOf(root);
    find("flame-found").textContent = !found ? "" : found.count
      ? `${size(found.bytes)} (${percent(found.bytes, shown)}) in ${found.count === 1 ? "1 match" : `${found.count} matches`}` : "No match";
    find("flame-out").hidden = this.zoomed < 0 && (this.order === "module" || this.page.module < 0);
    find("flame-none").hidden = held.whole > 0;
    this.canvas.hidden = held.whole === 0;
    find("flame-inside").textContent = FLAME_INSIDE[this.order];
    find("flame-lines").textContent = FLAME_LINES[tree.deepest] ?? "";
    find("flame-now").textContent = this.sentenceOf(this.current);
    Object.assign(this.box.dataset,
      { boxes: this.boxes.length, bytes: shown, root: root < 0 ? "" : tree.pathOf(root), order: this.order,
      found: found ? found.bytes : "", current: this.current < 0 ? "" : tree.pathOf(this.current) });
    for (const button of find("flame-orders").children)
      button.setAttribute("aria-checked", String(button.dataset.order === this.order));
  }

  /* "4.00 MiB, 13% of 120.25 MiB" */
  shareOf(bytes) {
    return `${size(bytes)}, ${percent(bytes, this.held.whole)} of ${size(this.held.whole)}`;
  }

  /* "GPT.blocks.0 > MLP.forward (gpt.py:43): 4.00 MiB, 13% of 120.25 MiB" */
  sentenceOf(node) {
    return node < 0 ? `${this.topName}: ${size(this.held.whole)}`
      : `${this.tree.pathOf(node)}: ${this.shareOf(this.bytesOf(node))}`;
  }

  tooltip(box) {
    const { tree } = this;
    const share = make("div", "", this.shareOf(box.bytes));
    if (box.others) return [make("div", "total", counted(box.others, "narrow part")), share,
      make("div", "note", "Zoom in to see more.")];
    const frame = box.node < 0 ? null : tree.frame[box.node];
    const isModule = box.node >= 0 && tree.kind[box.node] === "module";
    const parts = [make("div", "total", bdi(isModule ? tree.fqnOf(box.node) : this.nameOf(box.node))), share];
    if (frame) parts.push(make("div", "note", bdi(shorten(clean(`${frame.shown}:${frame.line || "?"}`)))),
      ...this.sourceOf(frame));
    const bytes = this.categoriesOf(box.node);
    const rows = STACKED.filter((c) => bytes[c] > 0).sort((a, b) => bytes[b] - bytes[a]);
    parts.push(...rows.map((c) =>
      make("div", "", make("span", "category", swatch(c), `${CATEGORIES[c]} ${size(bytes[c])}`))));
    return parts;
  }

  /* The source text of the frame's line, if the page has it. */
  sourceOf(frame) {
    const line = this.page.capture.stacks.source(frame, 0).lines[0];
    return line ? [make("code", "flame-source", bdi(clean(line[1].trim())))] : [];
  }

  /* ---- pointer and keys ---- */
  boxAt(x, y) {
    return this.boxes.findLast((box) => y >= box.y && y < box.y + FLAME_ROW && x >= box.x && x < box.x + box.width);
  }

  /* Handles a key; returns whether the flame graph uses it. */
  handleKey(event) {
    const { tree, held, current } = this;
    const parent = current < 0 ? -1 : tree.parent[current];
    const siblings = current < 0 || current === this.root ? [] : tree.childrenOf(parent, held);
    const at = siblings.indexOf(current);
    switch (event.key) {
      case "ArrowDown": this.goTo(tree.childrenOf(current, held)[0] ?? current); return true;
      case "ArrowUp": this.goTo(parent); return true;
      case "ArrowLeft": this.goTo(siblings[at - 1] ?? current); return true;
      case "ArrowRight": this.goTo(siblings[at + 1] ?? current); return true;
      case "Home": this.goTo(-1); return true;
      case "Enter": this.zoomTo(current); return true;
      case "Escape": if (find("flame-out").hidden) return false; this.zoomOut(); return true;
      default: return false;
    }
  }

  /* The keys stay within what is drawn. */
  goTo(node) {
    if (!this.boxes.some((box) => box.node === node && !box.others)) return;
    this.current = node;
    this.render();
    const { y } = this.boxes.find((box) => box.node === node);
    if (y < this.box.scrollTop) this.box.scrollTop = y;
    else if (y + FLAME_ROW > this.box.scrollTop + this.box.clientHeight)
      this.box.scrollTop = y + FLAME_ROW - this.box.clientHeight;
  }
}

function handleFlame(page) {
  const { flame } = page, { box, canvas } = flame;
  const boxUnder = (event) => {
    const { left, top } = canvas.getBoundingClientRect();
    return flame.boxAt(event.clientX - left, event.clientY - top);
  };
  canvas.addEventListener("pointermove", (event) => {
    const under = boxUnder(event);
    if (under) showTooltip(flame.tooltip(under), event.clientX, event.clientY);
    else hideTooltip();
  });
  canvas.addEventListener("pointerleave", hideTooltip);
  canvas.addEventListener("click", (event) => {
    const under = boxUnder(event);
    if (!under) return;
    hideTooltip();
    flame.zoomTo(under.others ? flame.tree.parent[under.node] : under.node);
  });
  box.addEventListener("focus", () => flame.render());
  box.addEventListener("blur", () => flame.render());
  find("flame-out").addEventListener("click", () => {
    flame.zoomOut();
    if (find("flame-out").hidden) box.focus({ preventScroll: true });
  });
  for (const button of find("flame-orders").children)
    button.addEventListener("click", () => flame.setOrder(button.dataset.order));
  const search = find("flame-search");
  search.addEventListener("input", () => flame.searchFor(search.value));
  search.addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      search.value = "";
      flame.searchFor("");
    } else if (event.key !== "Enter") return;
    box.focus();
    event.preventDefault();
    event.stopPropagation();
  });
  new ResizeObserver(() => page.capture && flame.held && flame.render()).observe(box);
}
