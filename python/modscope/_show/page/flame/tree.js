/* tree.js - the tree of the flame graph: modules, frames and operators, and the bytes of each at a tick. It has
 * the orders "module" and "line" of `modscope flame`, and "layers". */

/* A node is a number here: its index in these arrays. A parent's index is smaller than its children's.
 *   order "module": the modules, with the same numbers as in Modules; below them the frames, outermost first, then
 *   operators
 *   order "layers": the same, but modules whose names differ only in numbers are one: GPT.blocks.*.mlp
 *   order "line":   the frames, outermost first; below them the operators, then modules with their whole names */
class FlameTree {
  constructor(capture, order) {
    const { modules } = capture;
    Object.assign(this, { capture, order, name: [], kind: [], parent: [], children: [], frame: [], module: [], fqn: [],
      roots: [] });
    this.byKey = new Map();
    if (order === "module")
      modules.name.forEach((name, module) => this.addNode(modules.parent[module], "module", name, null, module));
    this.nodeOfModule = order === "layers" ? this.mergeLayers(modules) : null;
    this.deepest = 0; /* how many frames the deepest stack has */
    const leaves = new Map();
    this.templateNode = Uint32Array.from(capture.templateStack, (stack, template) => {
      const module = modules.templateModule[template];
      const key = module * 2 ** 32 + stack;
      if (!leaves.has(key)) leaves.set(key, this.addStack(module, capture.stacks.place(stack)));
      return leaves.get(key);
    });
    this.byKey.clear();
  }

  /* For each module the node that it shares with those whose names differ in numbers only. */
  mergeLayers(modules) {
    const nodes = new Uint32Array(modules.name.length);
    modules.name.forEach((name, module) => {
      const parent = modules.parent[module] < 0 ? -1 : nodes[modules.parent[module]];
      nodes[module] = this.below(parent, "module", /^[0-9]{1,9}$/.test(name) ? "*" : name);
    });
    return nodes;
  }

  addNode(parent, kind, name, frame = null, module = -1) {
    const node = this.name.length;
    this.name.push(name);
    this.kind.push(kind);
    this.parent.push(parent);
    this.children.push([]);
    this.frame.push(frame);
    this.module.push(module); /* or -1 */
    const isPart = kind === "module" && module < 0 && parent >= 0;
    this.fqn.push(module >= 0 ? this.capture.modules.fqn[module] : isPart ? `${this.fqn[parent]}.${name}` : name);
    (parent < 0 ? this.roots : this.children[parent]).push(node);
    return node;
  }

  /* The child of this name; it is added if there is none. */
  below(parent, kind, name, frame = null, module = -1) {
    const key = `${parent} ${kind} ${name} ${frame?.file ?? ""}`;
    let node = this.byKey.get(key);
    if (node === undefined) this.byKey.set(key, (node = this.addNode(parent, kind, name, frame, module)));
    return node;
  }

  /* The node that holds what a module owns and this place made. */
  addStack(module, place) {
    let node = this.order === "module" ? module : this.nodeOfModule ? this.nodeOfModule[module] : -1;
    this.deepest = Math.max(this.deepest, place.frames.length);
    for (const frame of place.frames.toReversed()) node = this.below(node, "frame", nameOfFrame(frame), frame);
    if (place.isLost || (node < 0 && !place.operator)) node = this.below(node, "frame", place.describe());
    if (place.operator) node = this.below(node, "operator", place.operator);
    return this.order !== "line" ? node : this.below(node, "module", this.capture.modules.fqn[module], null, module);
  }

  /* The bytes of each node at a tick by category, with all nodes below it, and their totals. `mask` limits them to a
   * subtree of modules, or is null. */
  heldAt(tick, device, mask) {
    const { capture, templateNode, parent } = this;
    const { template, templateBytes, templateCategory, modules } = capture;
    const count = parent.length;
    const held = { bytes: new Float64Array(count * COUNT), total: new Float64Array(count), whole: 0,
      sums: new Float64Array(COUNT) };
    capture.eachHeld(tick, device, (lifetime) => {
      const one = template[lifetime];
      if (!mask || mask[modules.templateModule[one]])
        held.bytes[templateNode[one] * COUNT + templateCategory[one]] += templateBytes[one];
    });
    for (let node = count - 1; node >= 0; node--) {
      for (let c = 0; c < COUNT; c++) {
        const bytes = held.bytes[node * COUNT + c];
        if (!bytes) continue;
        held.total[node] += bytes;
        if (parent[node] >= 0) held.bytes[parent[node] * COUNT + c] += bytes;
        else held.sums[c] += bytes;
      }
      if (parent[node] < 0) held.whole += held.total[node];
    }
    return held;
  }

  /* The children of a node, or the roots (-1), that hold something: the largest first. */
  childrenOf(node, held) {
    const all = node < 0 ? this.roots : this.children[node];
    return all.filter((child) => held.total[child] > 0).sort((a, b) => held.total[b] - held.total[a]
      || compareNames(this.name[a], this.name[b]));
  }

  /* "GPT.blocks.0 > MLP.forward (gpt.py:43)": a node with those around it. */
  pathOf(node) {
    if (this.kind[node] === "module") return this.fqnOf(node);
    const up = this.parent[node], here = clean(this.name[node]);
    return up < 0 ? here : `${this.pathOf(up)} > ${here}`;
  }

  fqnOf(node) {
    return label(this.fqn[node]);
  }

  /* What a search looks at: the name, a module's whole name, a frame's file. */
  textOf(node) {
    const whole = this.kind[node] === "module" ? this.fqn[node] : this.frame[node]?.file ?? "";
    return `${this.name[node]}\n${whole}`.toLowerCase();
  }

  /* 1 for each node whose text contains `text`, and how many there are and what they hold together below `root`: what
   * is inside a match counts once. */
  search(text, held, root) {
    const matches = new Uint8Array(this.name.length);
    const wanted = text.toLowerCase();
    let count = 0, bytes = 0;
    const inside = new Uint8Array(this.name.length); /* 1: below the root; 2: in a match too */
    for (let node = 0; node < matches.length; node++) {
      const up = this.parent[node];
      inside[node] = up >= 0 && inside[up] ? inside[up] : node === root || (root < 0 && up < 0) ? 1 : 0;
      if (!held.total[node] || !this.textOf(node).includes(wanted)) continue;
      matches[node] = 1;
      if (!inside[node]) continue;
      count++;
      if (inside[node] === 1) bytes += held.total[node];
      inside[node] = 2;
    }
    return { matches, count, bytes };
  }
}

/* "MLP.forward (gpt.py:43)", as `modscope flame` has it. */
function nameOfFrame({ file, function: name, line }) {
  return `${name} (${file.split("/").pop()}:${line || "?"})`;
}
