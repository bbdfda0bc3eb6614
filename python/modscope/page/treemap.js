/* treemap.js - the modules of a moment as areas: each module a box, in it its children and what it holds itself, by
 * category. */

const SMALLEST = 3; /* pixels; what is smaller is not divided further */
const TITLE = 17;   /* height of a box's title */

/* Divide a rectangle among items, largest first, so that the pieces are near to squares. Calls `place(item, x, y, w, h)`. */
function squarify(items, x, y, width, height, place) {
  let rest = items.reduce((sum, item) => sum + item.bytes, 0);
  for (let at = 0; at < items.length && rest > 0; ) {
    const side = Math.min(width, height);
    const scale = (width * height) / rest;
    let row = 0, end = at, worst = Infinity;
    while (end < items.length) {
      const sum = row + items[end].bytes;
      const thick = (sum * scale) / side;
      const first = (items[at].bytes * scale) / thick, last = (items[end].bytes * scale) / thick;
      const next = Math.max(thick / last, first / thick, thick / first, last / thick);
      if (next > worst) break;
      worst = next;
      row = sum;
      end++;
    }
    const thick = (row * scale) / side;
    let along = 0;
    for (; at < end; at++) {
      const long = (items[at].bytes * scale) / thick;
      if (width >= height) place(items[at], x, y + along, thick, long);
      else place(items[at], x + along, y, long, thick);
      along += long;
    }
    if (width >= height) x += thick, width -= thick;
    else y += thick, height -= thick;
    rest -= row;
  }
}

class Treemap {
  constructor(canvas) {
    this.canvas = canvas;
    this.boxes = [];
  }

  /* Show what is held, all of it or what is below `root`; `chosen` is a node, or -1. */
  draw(theme, modules, held, root, chosen) {
    const { context, width, height } = prepare(this.canvas);
    Object.assign(this, { context, theme, modules, held, chosen });
    this.within = chosen < 0 ? null : modules.within(chosen);
    this.boxes = []; /* of modules and of their parts, the inner ones after the outer ones */
    this.titled = new Set();
    context.textBaseline = "middle";
    context.textAlign = "left";
    context.font = `11px ${theme.font}`;
    const items = root < 0 ? modules.roots.map((node) => this.item(node)) : this.parts(root);
    this.divide(items, 0, 0, width, height, 0);
    this.light();
  }

  item(node) {
    return { node, category: -1, bytes: this.held.wholeTotal[node] };
  }

  /* A module's children, and what it holds itself. */
  parts(node) {
    const items = this.modules.children[node].map((child) => this.item(child));
    for (let c = 0; c < COUNT; c++) {
      const bytes = this.held.own[node * COUNT + c];
      if (bytes) items.push({ node, category: c, bytes });
    }
    return items;
  }

  divide(items, x, y, width, height, depth) {
    const held = items.filter((item) => item.bytes > 0).sort((a, b) => b.bytes - a.bytes);
    squarify(held, x, y, width, height, (item, ...box) => {
      if (item.category < 0) this.drawModule(item, box, depth);
      else this.drawPart(item, box);
    });
  }

  drawModule(item, [x, y, width, height], depth) {
    if (width < SMALLEST || height < SMALLEST) return this.drawPart({ ...item, category: this.main(item.node) }, [x, y, width, height]);
    const parts = this.parts(item.node).filter((part) => part.bytes > 0);
    /* A module that holds nothing itself and has one child only shares its box. */
    if (parts.length === 1 && parts[0].category < 0) return this.drawModule(parts[0], [x, y, width, height], depth);
    this.boxes.push({ ...item, x, y, width, height });
    const framed = width > 14 && height > 14;
    const titled = width > 40 && height > TITLE + 12;
    if (framed) this.drawFrame(x, y, width, height, depth);
    const edge = framed ? 2.5 : 0.5, top = titled ? TITLE : edge;
    if (titled) this.titled.add(item.node);
    this.divide(parts, x + edge, y + top, width - 2 * edge, height - edge - top, depth + 1);
    if (titled) this.write(item, x + 5, y + TITLE / 2 + 1, width - 9, depth);
  }

  drawFrame(x, y, width, height, depth) {
    const { context, theme } = this;
    context.fillStyle = depth % 2 ? theme.paper : theme.panel;
    context.strokeStyle = theme.faint;
    context.lineWidth = 1;
    context.fillRect(x + 0.5, y + 0.5, width - 1, height - 1);
    context.strokeRect(x + 0.5, y + 0.5, width - 1, height - 1);
  }

  main(node) {
    const sums = this.held.whole.subarray(node * COUNT, (node + 1) * COUNT);
    return sums.indexOf(Math.max(...sums));
  }

  drawPart(item, [x, y, width, height]) {
    const { context, theme } = this;
    const gap = Math.min(width, height) > 5 ? 0.75 : 0;
    const box = [x + gap, y + gap, Math.max(width - 2 * gap, 0.3), Math.max(height - 2 * gap, 0.3)];
    context.save();
    if (this.within && !this.within[item.node]) context.globalAlpha = 0.25;
    theme.fill(context, item.category, box);
    context.restore();
    this.boxes.push({ ...item, x, y, width, height });
    if (width > 40 && height > 18) this.writePart(item, x, y, width, height);
  }

  writePart(item, x, y, width, height) {
    const { context, theme } = this;
    context.save();
    context.beginPath();
    context.rect(x, y, width, height);
    context.clip();
    const name = this.titled.has(item.node) ? "" : clean(this.modules.name[item.node]);
    const letter = LETTERS[item.category];
    const lines = !name ? [`${letter} ${size(item.bytes)}`] : height > 34 ? [`${letter} ${name}`, size(item.bytes)] : [`${letter} ${name}`];
    if (!name && context.measureText(lines[0]).width > width - 12) lines[0] = letter;
    lines.forEach((text, i) => {
      const shown = fit(context, text, width - 12);
      if (!shown) return;
      const wide = context.measureText(shown).width;
      context.fillStyle = theme.paper;
      context.globalAlpha = 0.8;
      context.fillRect(x + 3, y + 3 + i * 14, wide + 6, 14);
      context.globalAlpha = 1;
      context.fillStyle = theme.ink;
      context.fillText(shown, x + 6, y + 10.5 + i * 14);
    });
    context.restore();
  }

  /* The box's title: its name, and its bytes where both fit. */
  write(item, x, y, width, depth) {
    const { context, theme, modules } = this;
    const name = clean(depth ? modules.name[item.node] : modules.fqn[item.node]) || '""';
    const bytes = size(item.bytes);
    context.font = `600 11px ${theme.font}`;
    const both = context.measureText(`${name}  ${bytes}`).width <= width;
    const shown = both ? name : fit(context, name, width);
    const wide = context.measureText(`${shown}  `).width;
    context.fillStyle = theme.ink;
    context.fillText(shown, x, y);
    context.font = `11px ${theme.font}`;
    context.fillStyle = theme.soft;
    if (both) context.fillText(bytes, x + wide, y);
  }

  /* A frame around the module that is chosen. */
  light() {
    const box = this.boxes.find((each) => each.category < 0 && each.node === this.chosen) ??
      this.boxes.find((each) => each.node === this.chosen);
    if (!box) return;
    this.context.strokeStyle = this.theme.accent;
    this.context.lineWidth = 3;
    this.context.strokeRect(box.x + 1.5, box.y + 1.5, Math.max(box.width - 3, 1), Math.max(box.height - 3, 1));
  }

  /* The innermost box there, or undefined. */
  at(x, y) {
    return this.boxes.findLast((box) => x >= box.x && x < box.x + box.width && y >= box.y && y < box.y + box.height);
  }
}
