/* alike.js - like layers as one: modules in the same place whose names are numbers and which hold the same, as the
   terminal
 * has them. Tree, treemap, blocks and the difference of captures use it while `together` is on. */

/* [0, 1, 2, 5] as "0-2, 5" */
function numberRanges(numbers) {
  const runs = [];
  for (const number of [...numbers].sort((a, b) => a - b)) {
    const last = runs.at(-1);
    if (last && number === last[1] + 1) last[1] = number;
    else runs.push([number, number]);
  }
  return runs.map(([from, to]) => (from === to ? `${from}` : `${from}-${to}`)).join(", ");
}

/* "GPT.h.*.mlp": the name that modules share whose names differ only in numbers. */
function mergeNumbers(fqn) {
  return fqn.replace(/(^|\.)\d{1,9}(?=\.|$)/g, "$1*");
}

/* Which modules of a moment are alike. A *unit* is {module, members, key}: the members are several modules that are
   alike,
 * of which `module` is the first, or null; the key names the unit: GPT.h.{1-9}. */
class Alike {
  constructor() {
    this.together = true;
    this.unfolded = new Set(); /* keys of units whose members are shown one by one */
  }

  show(modules, held) {
    Object.assign(this, { modules, held, shapes: null });
  }

  setTogether(together) {
    this.together = together;
    this.unfolded.clear();
  }

  /* A number for each module; modules that hold the same, in modules of the same names, have the same one. */
  findShapes() {
    const { name, children } = this.modules, { own, subtreeTotal } = this.held;
    const numbers = new Map(), shapes = new Uint32Array(name.length);
    for (let module = name.length - 1; module >= 0; module--) {
      if (!subtreeTotal[module]) continue;
      const inside = children[module].filter((child) => subtreeTotal[child] > 0).map((child) =>
        `${name[child]}=${shapes[child]}`).sort();
      const text = `${own.subarray(module * COUNT, (module + 1) * COUNT).join()};${inside.join()}`;
      if (!numbers.has(text)) numbers.set(text, numbers.size);
      shapes[module] = numbers.get(text);
    }
    return shapes;
  }

  /* The children of a module as units; `children` are those that hold something. */
  unitsOf(parent, children) {
    const { name, fqn } = this.modules, units = new Map();
    this.shapes ??= this.together ? this.findShapes() : null;
    for (const module of children) {
      const key = this.together && /^\d{1,9}$/.test(name[module]) ? this.shapes[module] : `=${module}`;
      if (units.has(key)) units.get(key).members.push(module);
      else units.set(key, { module, members: [module] });
    }
    return [...units.values()].map(({ module, members }) => {
      if (members.length < 2) return { module, members: null, key: fqn[module] };
      const numbers = numberRanges(members.map((each) => Number(name[each])));
      return { module, members, numbers, key: `${parent < 0 ? "" : `${fqn[parent]}.`}{${numbers}}` };
    });
  }

  isUnfolded(unit) {
    return this.unfolded.has(unit.key);
  }

  /* Unfolds what a module and its parents are folded in. */
  reveal(module) {
    const { parent, children, roots } = this.modules;
    for (let at = module; at >= 0; at = parent[at]) {
      const siblings = (parent[at] < 0 ? roots : children[parent[at]]).filter((each) =>
        this.held.subtreeTotal[each] > 0);
      const unit = this.unitsOf(parent[at], siblings).find(({ members }) => members?.includes(at));
      if (unit) this.unfolded.add(unit.key);
    }
  }
}
