/* treemap.js - the modules of a moment as nested rectangles: in each module's box lie its children and its own bytes by
 * category, or by other groups. */

const SMALLEST = 3; /* A box with a side below this many pixels is not divided further. */
const TITLE = 17;   /* height of a box's title in pixels */

/* Divides a rectangle among items, which are sorted by falling bytes, into pieces that are nearly square. Calls
 * `place(item, x, y, width, height)` for each. */
function squarify(items, x, y, width, height, place) {
  let rest = items.reduce((sum, item) => sum + item.bytes, 0);
  for (let at = 0; at < items.length && rest > 0; ) {
    const side = Math.min(width, height);
    const scale = (width * height) / rest;
    let row = 0, end = at, worst = Infinity;
    while (end < items.length) {
      const sum = row + items[end].bytes;
      const thickness = (sum * scale) / side;
      const first = (items[at].bytes * scale) / thickness, last = (items[end].bytes * scale) / thickness;
      const ratio = Math.max(thickness / last, first / thickness, thickness / first, last / thickness);
      if (ratio > worst) break;
      worst = ratio;
      row = sum;
      end++;
    }
    const thickness = (row * scale) / side;
    let offset = 0;
    for (; at < end; at++) {
      const length = (items[at].bytes * scale) / thickness;
      if (width >= height) place(items[at], x, y + offset, thickness, length);
      else place(items[at], x + offset, y, length, thickness);
      offset += length;
    }
    if (width >= height) x += thickness, width -= thickness;
    else y += thickness, height -= thickness;
    rest -= row;
  }
}

class Treemap {
  constructor(canvas) {
    this.canvas = canvas;
    this.boxes = [];
  }

  /* Draws all modules, or the subtree of `root` if it is not -1. `selected` is a module, or -1. `parts`: by the groups
     of
   * `grouping`, as Modules.partsAt gives them. */
  draw(theme, modules, held, root, selected, grouping, parts, alike) {
    const { context, width, height } = prepareCanvas(this.canvas);
    Object.assign(this, { context, theme, modules, held, root, selected, grouping, parts, alike });
    this.boxes = []; /* boxes of modules (group -1) and of their own bytes; inner boxes come after outer ones */
    this.titled = new Set();
    context.textBaseline = "middle";
    context.textAlign = "left";
    context.font = `11px ${theme.font}`;
    const items = root < 0 ? this.itemsOf(-1, null) : this.partsOf(root, null);
    this.divide(items, 0, 0, width, height, 0);
    this.outlineSelected();
  }

  /* The children of a module; several that are alike are one item, whose `fold` says what it and all in it stand for:
   * {times, prefix, name}, where `prefix` begins their fqn and `name` replaces it. */
  itemsOf(module, fold) {
    const { modules, held } = this;
    const children = (module < 0 ? modules.roots : modules.children[module]).filter((each) =>
      held.subtreeTotal[each] > 0);
    return this.alike.unitsOf(module, children).flatMap((unit) => {
      const one = (each, within) =>
        ({ module: each, group: -1, bytes: held.subtreeTotal[each] * (within?.times ?? 1), fold: within });
      if (!unit.members) return [one(unit.module, fold)];
      if (this.alike.isUnfolded(unit)) return unit.members.map((each) => one(each, fold));
      const prefix = modules.fqn[unit.module],
        name = `${module < 0 ? "" : `${this.nameOf(module, fold)}.`}{${unit.numbers}}`;
      const times = (fold?.times ?? 1) * unit.members.length;
      return [{ ...one(unit.module, { times, prefix, name }),
        title: `${unit.numbers} (${unit.members.length} alike)` }];
    });
  }

  nameOf(module, fold) {
    const fqn = this.modules.fqn[module];
    return fold ? fold.name + fqn.slice(fold.prefix.length) : fqn;
  }

  /* A module's children, and its own bytes by group; those of the module that fills the treemap block by block. */
  partsOf(module, fold) {
    const items = this.itemsOf(module, fold);
    const { own, count, blocks } = this.parts;
    if (module === this.root && !items.length) return blocks.map((block) => ({ module, ...block, fold }));
    for (let group = 0; group < count; group++) {
      const bytes = own[module * count + group];
      if (bytes) items.push({ module, group, bytes: bytes * (fold?.times ?? 1), fold });
    }
    return items;
  }

  divide(items, x, y, width, height, depth) {
    const sorted = items.filter((item) => item.bytes > 0).sort((a, b) => b.bytes - a.bytes);
    squarify(sorted, x, y, width, height, (item, ...box) => {
      if (item.group < 0) this.drawModule(item, box, depth);
      else this.drawPart(item, box);
    });
  }

  drawModule(item, [x, y, width, height], depth) {
    if (width < SMALLEST || height < SMALLEST)
      return this.drawPart({ ...item, group: this.largestGroup(item.module), isWhole: true }, [x, y, width, height]);
    const parts = this.partsOf(item.module, item.fold).filter((part) => part.bytes > 0);
    /* A module without bytes of its own and with one child shows only the child's box. */
    if (parts.length === 1 && parts[0].group < 0 && !item.title)
      return this.drawModule(parts[0], [x, y, width, height], depth);
    this.boxes.push({ ...item, x, y, width, height });
    const framed = width > 14 && height > 14;
    const titled = width > 40 && height > TITLE + 12;
    if (framed) this.drawFrame(x, y, width, height, depth);
    const edge = framed ? 2.5 : 0.5, top = titled ? TITLE : edge;
    if (titled) this.titled.add(item.module);
    this.divide(parts, x + edge, y + top, width - 2 * edge, height - edge - top, depth + 1);
    if (titled) this.writeTitle(item, x + 5, y + TITLE / 2 + 1, width - 9, depth);
  }

  drawFrame(x, y, width, height, depth) {
    const { context, theme } = this;
    context.fillStyle = depth % 2 ? theme.paper : theme.panel;
    context.strokeStyle = theme.faint;
    context.lineWidth = 1;
    context.fillRect(x + 0.5, y + 0.5, width - 1, height - 1);
    context.strokeRect(x + 0.5, y + 0.5, width - 1, height - 1);
  }

  largestGroup(module) {
    const { subtree, count } = this.parts;
    const sums = subtree.subarray(module * count, (module + 1) * count);
    return sums.indexOf(Math.max(...sums));
  }

  drawPart(item, [x, y, width, height]) {
    const { context, theme } = this;
    const gap = Math.min(width, height) > 5 ? 0.75 : 0;
    const box = [x + gap, y + gap, Math.max(width - 2 * gap, 0.3), Math.max(height - 2 * gap, 0.3)];
    context.save();
    if (!this.isSelected(item)) context.globalAlpha = 0.25;
    this.grouping.fill(theme, context, item.group, box);
    context.restore();
    this.boxes.push({ ...item, x, y, width, height });
    if (width > 40 && height > 18) this.writePart(item, x, y, width, height);
  }

  /* Whether something of the box belongs to what is selected, or nothing is selected. */
  isSelected({ module, group, isWhole }) {
    const { selected, selectedTotal, count } = this.parts;
    return (isWhole ? selectedTotal[module] : selected[module * count + group]) > 0;
  }

  writePart(item, x, y, width, height) {
    const { context, theme } = this;
    context.save();
    context.beginPath();
    context.rect(x, y, width, height);
    context.clip();
    const name = this.titled.has(item.module) ? "" : clean(this.modules.name[item.module]);
    const letter = this.grouping.letter(item.group);
    const lines = !name ? [`${letter} ${size(item.bytes)}`] : height > 34 ? [`${letter} ${name}`, size(item.bytes)]
      : [`${letter} ${name}`];
    if (!name && context.measureText(lines[0]).width > width - 12) lines[0] = letter;
    lines.forEach((text, i) => {
      const shown = fitText(context, text, width - 12);
      if (!shown) return;
      const textWidth = context.measureText(shown).width;
      context.fillStyle = theme.paper;
      context.globalAlpha = 0.8;
      context.fillRect(x + 3, y + 3 + i * 14, textWidth + 6, 14);
      context.globalAlpha = 1;
      context.fillStyle = theme.ink;
      context.fillText(shown, x + 6, y + 10.5 + i * 14);
    });
    context.restore();
  }

  /* Writes the module's name, and its bytes where both fit. */
  writeTitle(item, x, y, width, depth) {
    const { context, theme, modules } = this;
    const name = item.title ?? (clean(depth ? modules.name[item.module] : modules.fqn[item.module]) || '""');
    const bytes = size(item.bytes);
    context.font = `600 11px ${theme.font}`;
    const bothFit = context.measureText(`${name}  ${bytes}`).width <= width;
    const shown = bothFit ? name : fitText(context, name, width);
    const nameWidth = context.measureText(`${shown}  `).width;
    context.fillStyle = theme.ink;
    context.fillText(shown, x, y);
    context.font = `11px ${theme.font}`;
    context.fillStyle = theme.soft;
    if (bothFit) context.fillText(bytes, x + nameWidth, y);
  }

  outlineSelected() {
    const box = this.boxes.find((each) => each.group < 0 && each.module === this.selected) ??
      this.boxes.find((each) => each.module === this.selected);
    if (!box) return;
    this.context.strokeStyle = this.theme.accent;
    this.context.lineWidth = 3;
    this.context.strokeRect(box.x + 1.5, box.y + 1.5, Math.max(box.width - 3, 1), Math.max(box.height - 3, 1));
  }

  /* The innermost box at this point, or undefined. */
  boxAt(x, y) {
    return this.boxes.findLast((box) => x >= box.x && x < box.x + box.width && y >= box.y && y < box.y + box.height);
  }
}
