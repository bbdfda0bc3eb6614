/* modules.js - the tree of modules, by dotted names (as _branch.py grows it), and what each holds at a tick. */

const DEEPEST = 64; /* parts of a name; the rest is the last one's */

function partsOf(fqn) {
  const parts = fqn.split(".");
  return parts.length <= DEEPEST ? parts : [...parts.slice(0, DEEPEST - 1), parts.slice(DEEPEST - 1).join(".")];
}

class Modules {
  constructor(capture) {
    this.capture = capture;
    this.name = [];
    this.fqn = [];
    this.parent = []; /* before its children; -1: it is a root */
    this.children = [];
    this.roots = [];
    this.byFqn = new Map();
    const ofPath = new Map();
    this.kindNode = Uint32Array.from(capture.kindPath, (path) => {
      if (!ofPath.has(path)) ofPath.set(path, this.grow(capture.moduleOf(path)));
      return ofPath.get(path);
    });
  }

  /* The node of this name, with those above it. */
  grow(fqn) {
    let node = -1, prefix = "";
    for (const part of partsOf(fqn)) {
      prefix = node < 0 ? part : `${prefix}.${part}`;
      const below = this.byFqn.get(prefix) ?? this.name.length;
      if (below === this.name.length) {
        this.byFqn.set(prefix, below);
        this.name.push(part);
        this.fqn.push(prefix);
        this.parent.push(node);
        this.children.push([]);
        (node < 0 ? this.roots : this.children[node]).push(below);
      }
      node = below;
    }
    return node;
  }

  /* 1 for the node and all below it, 0 for others. */
  within(node) {
    const inside = new Uint8Array(this.name.length);
    for (let i = 0; i < inside.length; i++) inside[i] = i === node || (this.parent[i] >= 0 && inside[this.parent[i]]);
    return inside;
  }

  /* Bytes by category that each module holds itself, and with all below it, and the totals of both. */
  at(tick, device) {
    const { capture, kindNode } = this;
    const count = this.name.length;
    const held = {
      own: new Float64Array(count * COUNT),
      whole: new Float64Array(count * COUNT),
      ownTotal: new Float64Array(count),
      wholeTotal: new Float64Array(count),
      total: 0,
      sums: new Float64Array(COUNT),
      blocks: 0,
    };
    capture.eachHeld(tick, device, (stay) => {
      const kind = capture.kind[stay];
      held.own[kindNode[kind] * COUNT + capture.kindCategory[kind]] += capture.kindBytes[kind];
      held.blocks++;
    });
    for (let node = count - 1; node >= 0; node--) this.addUp(held, node);
    return held;
  }

  addUp(held, node) {
    const parent = this.parent[node];
    for (let c = 0; c < COUNT; c++) {
      const at = node * COUNT + c;
      held.ownTotal[node] += held.own[at];
      held.whole[at] += held.own[at];
      held.wholeTotal[node] += held.whole[at];
      if (parent >= 0) held.whole[parent * COUNT + c] += held.whole[at];
      else held.sums[c] += held.whole[at];
    }
    if (parent < 0) held.total += held.wholeTotal[node];
  }
}

/* {"Parameter": 4096, ...} of what is not 0. */
function named(array, at = 0) {
  const words = {};
  for (let c = 0; c < COUNT; c++) if (array[at + c]) words[CATEGORIES[c]] = array[at + c];
  return words;
}
