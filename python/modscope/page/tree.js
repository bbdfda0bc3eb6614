/* tree.js - the module tree of a moment, as rows that open and close, are sorted and searched. */

const ROWS_AT_FIRST = 40;  /* it opens as deep as that many rows */
const ROWS_SHOWN = 400;    /* until the rest is asked for */

class Tree {
  /* `rows`: the element they go to; `choose(node)`: called when one is chosen. */
  constructor(rows, choose) {
    this.rows = rows;
    this.choose = choose;
    this.sort = "subtree";
    this.down = true;
    this.search = "";
    this.limit = ROWS_SHOWN;
    this.focused = null; /* fqn of the row that Tab comes to */
    this.opened = new Map(); /* fqn: whether it was opened or closed by hand */
  }

  show(modules, held, chosen) {
    Object.assign(this, { modules, held, chosen });
    this.depth = this.fittingDepth();
    this.render();
  }

  /* ---- what is shown ---- */
  compare(a, b) {
    const { held, modules } = this;
    const by = { subtree: held.wholeTotal, own: held.ownTotal }[this.sort];
    const sign = this.down ? -1 : 1;
    const difference = by ? (by[a] - by[b]) * sign : natural(modules.name[a], modules.name[b]) * sign;
    return difference || natural(modules.name[a], modules.name[b]);
  }

  below(node) {
    const nodes = node < 0 ? this.modules.roots : this.modules.children[node];
    return nodes.filter((each) => this.held.wholeTotal[each] > 0 && (!this.matches || this.matches[each]));
  }

  /* The deepest level to open of which all rows fit. */
  fittingDepth() {
    let nodes = this.modules.roots.filter((node) => this.held.wholeTotal[node] > 0), rows = nodes.length, depth = 0;
    while (nodes.length) {
      nodes = nodes.flatMap((node) => this.modules.children[node].filter((each) => this.held.wholeTotal[each] > 0));
      rows += nodes.length;
      if (rows > ROWS_AT_FIRST) break;
      depth++;
    }
    return depth;
  }

  isOpen(node, level) {
    if (this.matches) return this.opened.get(this.modules.fqn[node]) !== false;
    return this.opened.get(this.modules.fqn[node]) ?? level < this.depth;
  }

  /* 1 for modules whose name has what is searched for, and for those above them. */
  findMatches() {
    this.matches = null;
    this.found = [];
    if (!this.search) return;
    const wanted = this.search.toLowerCase();
    const { fqn, parent } = this.modules;
    this.matches = new Uint8Array(fqn.length);
    for (let node = fqn.length - 1; node >= 0; node--) {
      if (this.held.wholeTotal[node] > 0 && fqn[node].toLowerCase().includes(wanted)) {
        this.matches[node] = 1;
        this.found.push(node);
      }
      if (this.matches[node] && parent[node] >= 0) this.matches[parent[node]] = 1;
    }
    this.found.reverse();
  }

  list() {
    const shown = [];
    const visit = (node, level) => {
      const below = this.below(node);
      const open = below.length > 0 && this.isOpen(node, level);
      shown.push({ node, level, open, leaf: !below.length });
      if (open) for (const child of below.sort((a, b) => this.compare(a, b))) visit(child, level + 1);
    };
    for (const root of this.below(-1).sort((a, b) => this.compare(a, b))) visit(root, 0);
    return shown;
  }

  /* ---- rows ---- */
  render() {
    this.findMatches();
    this.shown = this.list();
    const { fqn } = this.modules;
    if (!this.shown.some((row) => fqn[row.node] === this.focused))
      this.focused = this.shown.length ? fqn[this.shown[0].node] : null;
    const had = this.rows.contains(document.activeElement);
    const count = Math.min(this.shown.length, this.limit);
    while (this.rows.children.length > count) this.rows.lastElementChild.remove();
    while (this.rows.children.length < count) this.rows.append(this.makeRow());
    for (let i = 0; i < count; i++) this.fill(this.rows.children[i], this.shown[i]);
    if (had) this.focusRow(this.focused);
    this.tellRest();
  }

  tellRest() {
    const rest = this.shown.length - this.limit;
    const more = find("tree-more");
    more.hidden = rest <= 0;
    more.textContent = `Show ${counted(Math.max(rest, 0), "more row")}`;
    find("tree-none").hidden = this.shown.length > 0;
    find("tree-none").textContent = this.search ? "No module that holds anything is called so." : "Nothing is held.";
    find("found").textContent = this.search ? counted(this.found.length, "module") : "";
  }

  makeRow() {
    const twist = make("span", "twist");
    twist.setAttribute("aria-hidden", "true");
    const name = make("span", "name", twist, bdi("", "fqn"));
    const cells = [name, make("span", "bar"), make("span", "figure subtree"), make("span", "figure own"), make("span", "figure share")];
    const row = make("div", "row", ...cells);
    row.setAttribute("role", "row");
    for (const cell of cells) cell.setAttribute("role", "gridcell");
    return row;
  }

  fill(row, { node, level, open, leaf }) {
    const { modules, held } = this;
    const fqn = modules.fqn[node];
    row.node = node;
    row.dataset.fqn = fqn;
    row.dataset.own = held.ownTotal[node];
    row.dataset.subtree = held.wholeTotal[node];
    row.dataset.ownBy = JSON.stringify(named(held.own, node * COUNT));
    row.dataset.subtreeBy = JSON.stringify(named(held.whole, node * COUNT));
    row.setAttribute("aria-level", level + 1);
    row.setAttribute("aria-selected", node === this.chosen);
    if (leaf) row.removeAttribute("aria-expanded");
    else row.setAttribute("aria-expanded", open);
    row.tabIndex = fqn === this.focused ? 0 : -1;
    row.style.setProperty("--level", Math.min(level, 24));
    const [name, bar, subtree, own, share] = row.children;
    name.firstChild.textContent = leaf ? "" : open ? "▾" : "▸";
    name.lastChild.textContent = fqn === "Global" ? label(fqn) : clean(modules.name[node]) || '""';
    name.title = clean(fqn);
    fillBar(bar, held.whole, node * COUNT, held.wholeTotal[node], this.most());
    subtree.textContent = size(held.wholeTotal[node]);
    own.textContent = held.ownTotal[node] ? size(held.ownTotal[node]) : "–";
    share.textContent = percent(held.wholeTotal[node], held.total);
  }

  /* The bars' full length. */
  most() {
    return this.modules.roots.reduce((most, node) => Math.max(most, this.held.wholeTotal[node]), 0);
  }

  /* ---- moving about ---- */
  focusRow(fqn) {
    this.focused = fqn;
    for (const row of this.rows.children) {
      const here = row.dataset.fqn === fqn;
      row.tabIndex = here ? 0 : -1;
      if (here) row.focus({ preventScroll: false });
    }
  }

  toggle(node, open) {
    this.opened.set(this.modules.fqn[node], open);
    this.render();
  }

  /* Open all rows, or close all but the roots. */
  all(open) {
    this.opened.clear();
    for (let node = 0; node < this.modules.fqn.length; node++) this.opened.set(this.modules.fqn[node], open);
    this.render();
  }

  /* Have a module's row on the screen. */
  reveal(node) {
    if (node < 0) return;
    for (let up = this.modules.parent[node]; up >= 0; up = this.modules.parent[up]) this.opened.set(this.modules.fqn[up], true);
    this.focused = this.modules.fqn[node];
    const at = this.list().findIndex((row) => row.node === node);
    this.limit = Math.max(this.limit, at + 1);
    this.render();
    const row = this.rows.children[at];
    if (row) scrollWithin(this.rows, row);
  }

  /* Whether the key was for the tree. */
  key(event) {
    const at = this.shown.findIndex((row) => this.modules.fqn[row.node] === this.focused);
    if (at < 0) return false;
    const { node, open, leaf } = this.shown[at];
    const go = (to) => this.focusRow(this.modules.fqn[this.shown[Math.min(Math.max(to, 0), this.shown.length - 1)].node]);
    switch (event.key) {
      case "ArrowDown": go(at + 1); return true;
      case "ArrowUp": go(at - 1); return true;
      case "Home": go(0); return true;
      case "End": go(this.shown.length - 1); return true;
      case "PageDown": go(at + 12); return true;
      case "PageUp": go(at - 12); return true;
      case "ArrowRight":
        if (!leaf && !open) this.toggle(node, true);
        else if (open) go(at + 1);
        return true;
      case "ArrowLeft":
        if (open) this.toggle(node, false);
        else if (this.modules.parent[node] >= 0) this.focusRow(this.modules.fqn[this.modules.parent[node]]);
        return true;
      case "Enter": case " ": this.choose(node === this.chosen ? -1 : node); return true;
      case "*": this.all(true); return true;
      default: return false;
    }
  }

  click(event) {
    const row = event.target.closest(".row");
    if (!row) return;
    this.focused = row.dataset.fqn;
    if (event.target.classList.contains("twist") && row.hasAttribute("aria-expanded"))
      this.toggle(row.node, row.getAttribute("aria-expanded") !== "true");
    else this.choose(row.node === this.chosen ? -1 : row.node);
  }
}

/* Scroll only the box itself: the page stays where it is. */
function scrollWithin(box, row) {
  const outer = box.getBoundingClientRect(), inner = row.getBoundingClientRect();
  if (inner.top < outer.top) box.scrollTop -= outer.top - inner.top;
  else if (inner.bottom > outer.bottom) box.scrollTop += inner.bottom - outer.bottom;
}

/* A bar of categories, as long as its share of `most`. */
function fillBar(bar, sums, at, total, most) {
  bar.style.setProperty("--length", most ? total / most : 0);
  const parts = STACKED.filter((category) => sums[at + category] > 0);
  while (bar.children.length > parts.length) bar.lastElementChild.remove();
  while (bar.children.length < parts.length) bar.append(make("i", ""));
  parts.forEach((category, i) => {
    bar.children[i].dataset.category = CATEGORIES[category];
    bar.children[i].style.flexGrow = sums[at + category] / total;
  });
  bar.title = parts.map((category) => `${CATEGORIES[category]} ${size(sums[at + category])}`).join(", ");
}
