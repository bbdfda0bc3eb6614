/* modules.js - the tree of modules, built from their dotted names, and the bytes that each owns at a tick. */

const DEEPEST = 64; /* A name has at most this many parts; the last part takes the rest of a longer name. */

const BLOCKS_IN_MAP = 300;

function partsOf(fqn) {
  const parts = fqn.split(".");
  return parts.length <= DEEPEST ? parts : [...parts.slice(0, DEEPEST - 1), parts.slice(DEEPEST - 1).join(".")];
}

/* A module is a number here: its index in these arrays. A parent's index is smaller than its children's. */
class Modules {
  constructor(capture) {
    this.capture = capture;
    this.name = [];
    this.fqn = [];
    this.parent = []; /* -1 for a root */
    this.children = [];
    this.roots = [];
    this.byFqn = new Map();
    const byPath = new Map();
    this.templateModule = Uint32Array.from(capture.templatePath, (path) => {
      if (!byPath.has(path)) byPath.set(path, this.addModule(capture.fqnOfPath(path)));
      return byPath.get(path);
    });
  }

  /* The module of this name; it and its parents are added where they are missing. */
  addModule(fqn) {
    let module = -1, prefix = "";
    for (const part of partsOf(fqn)) {
      prefix = module < 0 ? part : `${prefix}.${part}`;
      const child = this.byFqn.get(prefix) ?? this.name.length;
      if (child === this.name.length) {
        this.byFqn.set(prefix, child);
        this.name.push(part);
        this.fqn.push(prefix);
        this.parent.push(module);
        this.children.push([]);
        (module < 0 ? this.roots : this.children[module]).push(child);
      }
      module = child;
    }
    return module;
  }

  /* 1 for each module of the subtree, 0 for every other module. */
  subtreeMask(module) {
    const mask = new Uint8Array(this.name.length);
    for (let i = 0; i < mask.length; i++) mask[i] = i === module || (this.parent[i] >= 0 && mask[this.parent[i]]);
    return mask;
  }

  /* The bytes of each module by category, own and subtree, with their totals, and the totals of the device. */
  heldAt(tick, device) {
    const { capture, templateModule } = this;
    const count = this.name.length;
    const held = {
      own: new Float64Array(count * COUNT),
      subtree: new Float64Array(count * COUNT),
      ownTotal: new Float64Array(count),
      subtreeTotal: new Float64Array(count),
      total: 0,
      sums: new Float64Array(COUNT),
    };
    capture.eachHeld(tick, device, (lifetime) => {
      const template = capture.template[lifetime];
      held.own[templateModule[template] * COUNT
        + capture.templateCategory[template]] += capture.templateBytes[template];
    });
    for (let module = count - 1; module >= 0; module--) this.addToParent(held, module);
    return held;
  }

  /* What a module owns itself, block by block, the largest first: {group, bytes, blocks}. Those after the first few
     hundred
   * are one for each group; `blocks` says how many. */
  blocksAt(tick, device, grouping, module) {
    const { capture, templateModule } = this, found = [];
    capture.eachHeld(tick, device, (lifetime) => {
      const template = capture.template[lifetime];
      if (templateModule[template] === module)
        found.push({ group: grouping.templateGroup[template], bytes: capture.templateBytes[template], blocks: 1 });
    });
    found.sort((a, b) => b.bytes - a.bytes);
    const rest = new Map();
    for (const { group, bytes } of found.splice(BLOCKS_IN_MAP)) {
      const sum = rest.get(group) ?? { group, bytes: 0, blocks: 0 };
      rest.set(group, { group, bytes: sum.bytes + bytes, blocks: sum.blocks + 1 });
    }
    return [...found, ...rest.values()];
  }

  /* What the treemap draws: the bytes of each module by group, own and subtree; and of these what is selected: the own
     ones
   * by group, and the subtree's total. `mask` says which templates are selected; null: all. */
  partsAt(tick, device, grouping, mask) {
    const { capture, templateModule } = this;
    const { count, templateGroup } = grouping;
    const own = new Float64Array(this.name.length * count);
    const selected = mask ? new Float64Array(own.length) : own, selectedTotal = new Float64Array(this.name.length);
    capture.eachHeld(tick, device, (lifetime) => {
      const template = capture.template[lifetime];
      const at = templateModule[template] * count + templateGroup[template];
      own[at] += capture.templateBytes[template];
      if (mask && mask[template]) selected[at] += capture.templateBytes[template];
      if (!mask || mask[template]) selectedTotal[templateModule[template]] += capture.templateBytes[template];
    });
    const subtree = own.slice();
    for (let module = this.name.length - 1; module >= 0; module--) {
      const parent = this.parent[module];
      if (parent < 0) continue;
      selectedTotal[parent] += selectedTotal[module];
      for (let group = 0; group < count; group++) subtree[parent * count + group] += subtree[module * count + group];
    }
    return { own, subtree, selected, selectedTotal, count };
  }

  /* The children of `module` must have been added before it. */
  addToParent(held, module) {
    const parent = this.parent[module];
    for (let c = 0; c < COUNT; c++) {
      const at = module * COUNT + c;
      held.ownTotal[module] += held.own[at];
      held.subtree[at] += held.own[at];
      held.subtreeTotal[module] += held.subtree[at];
      if (parent >= 0) held.subtree[parent * COUNT + c] += held.subtree[at];
      else held.sums[c] += held.subtree[at];
    }
    if (parent < 0) held.total += held.subtreeTotal[module];
  }
}

/* {"Parameter": 4096, ...}: the categories whose bytes are not 0. */
function bytesByCategory(array, at = 0) {
  const bytes = {};
  for (let c = 0; c < COUNT; c++) if (array[at + c]) bytes[CATEGORIES[c]] = array[at + c];
  return bytes;
}
