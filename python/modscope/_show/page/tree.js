/* tree.js - the module tree of a moment, as rows that can be expanded, sorted and searched. */

const ROWS_AT_FIRST = 40;  /* The tree is expanded at first as deep as this many rows allow. */
const ROWS_SHOWN = 400;    /* Further rows are added on request. */
const BAR = { least: 60, most: 140 }; /* width of the category bars in pixels */

class Tree {
  /* `rows`: the element that contains the rows; `select(module)`: called when a row is selected. */
  constructor(rows, select) {
    this.rows = rows;
    this.select = select;
    this.sort = "subtree";
    this.isDescending = true;
    this.search = "";
    this.limit = ROWS_SHOWN;
    this.bar = BAR.most;
    this.focused = null; /* fqn of the row that has the Tab stop */
    this.expanded = new Map(); /* by fqn: whether the user expanded (true) or collapsed (false) the row */
  }

  show(modules, held, selected) {
    Object.assign(this, { modules, held, selected });
    this.depth = this.fittingDepth();
    this.render();
  }

  /* ---- which rows are shown ---- */
  compare(a, b) {
    const { held, modules } = this;
    const by = { subtree: held.subtreeTotal, own: held.ownTotal }[this.sort];
    const byName = compareNames(modules.name[a], modules.name[b]);
    return (by ? by[a] - by[b] : byName) * (this.isDescending ? -1 : 1) || byName;
  }

  /* The children that have rows; -1 stands for the parent of the roots. */
  childrenOf(module) {
    const children = module < 0 ? this.modules.roots : this.modules.children[module];
    return children.filter((each) => this.held.subtreeTotal[each] > 0 && (!this.matches || this.matches[each]));
  }

  /* The deepest level to which the tree can be expanded within ROWS_AT_FIRST rows. */
  fittingDepth() {
    const withMemory = (modules) => modules.filter((each) => this.held.subtreeTotal[each] > 0);
    let level = withMemory(this.modules.roots), rows = level.length, depth = 0;
    while (level.length) {
      level = level.flatMap((module) => withMemory(this.modules.children[module]));
      rows += level.length;
      if (rows > ROWS_AT_FIRST) break;
      depth++;
    }
    return depth;
  }

  isExpanded(module, level) {
    const byUser = this.expanded.get(this.modules.fqn[module]);
    return this.matches ? byUser !== false : byUser ?? level < this.depth;
  }

  /* Sets `matches` to 1 for modules whose name contains the search text, and for their parents. */
  findMatches() {
    this.matches = null;
    this.found = [];
    if (!this.search) return;
    const wanted = this.search.toLowerCase();
    const { fqn, parent } = this.modules;
    this.matches = new Uint8Array(fqn.length);
    for (let module = fqn.length - 1; module >= 0; module--) {
      if (this.held.subtreeTotal[module] > 0 && fqn[module].toLowerCase().includes(wanted)) {
        this.matches[module] = 1;
        this.found.push(module);
      }
      if (this.matches[module] && parent[module] >= 0) this.matches[parent[module]] = 1;
    }
    this.found.reverse();
  }

  listRows() {
    const rows = [];
    const visit = (module, level) => {
      const children = this.childrenOf(module).sort((a, b) => this.compare(a, b));
      const isExpanded = module < 0 || (children.length > 0 && this.isExpanded(module, level));
      if (module >= 0) rows.push({ module, level, isExpanded, isLeaf: !children.length });
      if (isExpanded) for (const child of children) visit(child, level + 1);
    };
    visit(-1, -1);
    return rows;
  }

  /* ---- rows ---- */
  render() {
    this.findMatches();
    this.shown = this.listRows();
    const { fqn } = this.modules;
    if (!this.shown.some((row) => fqn[row.module] === this.focused))
      this.focused = this.shown.length ? fqn[this.shown[0].module] : null;
    const hadFocus = this.rows.contains(document.activeElement);
    const count = Math.min(this.shown.length, this.limit);
    while (this.rows.children.length > count) this.rows.lastElementChild.remove();
    while (this.rows.children.length < count) this.rows.append(this.makeRow());
    for (let i = 0; i < count; i++) this.fillRow(this.rows.children[i], this.shown[i]);
    this.fitBars();
    if (hadFocus) this.focusRow(this.focused);
    this.describeRest();
  }

  /* Gives names the room that they need first, and the bars what is left. */
  fitBars() {
    const names = [...this.rows.children].map((row) => row.firstChild);
    if (!names.length) return;
    const needed = Math.max(...names.map((name) => name.lastChild.offsetLeft - name.offsetLeft + name.lastChild.scrollWidth + 1));
    const room = names[0].clientWidth + this.bar;
    this.bar = Math.min(Math.max(room - needed, BAR.least), BAR.most);
    this.rows.parentElement.style.setProperty("--bar", `${this.bar}px`);
  }

  describeRest() {
    const rest = this.shown.length - this.limit;
    const more = find("tree-more");
    more.hidden = rest <= 0;
    more.textContent = `Show ${counted(Math.max(rest, 0), "more row")}`;
    find("tree-none").hidden = this.shown.length > 0;
    find("tree-none").textContent = this.search ? "No module that owns memory matches this name." : "No memory is allocated at this moment.";
    find("found").textContent = this.search ? counted(this.found.length, "module") : "";
  }

  makeRow() {
    const arrow = make("span", "arrow");
    arrow.setAttribute("aria-hidden", "true");
    const name = make("span", "name", arrow, bdi("", "fqn"));
    const cells = [name, make("span", "bar"), make("span", "figure subtree"), make("span", "figure own"), make("span", "figure share")];
    const row = make("div", "row", ...cells);
    row.setAttribute("role", "row");
    for (const cell of cells) cell.setAttribute("role", "gridcell");
    return row;
  }

  fillRow(row, { module, level, isExpanded, isLeaf }) {
    const { modules, held } = this;
    const fqn = modules.fqn[module];
    row.module = module;
    row.dataset.fqn = fqn;
    row.dataset.own = held.ownTotal[module];
    row.dataset.subtree = held.subtreeTotal[module];
    row.dataset.ownBy = JSON.stringify(bytesByCategory(held.own, module * COUNT));
    row.dataset.subtreeBy = JSON.stringify(bytesByCategory(held.subtree, module * COUNT));
    row.setAttribute("aria-level", level + 1);
    row.setAttribute("aria-selected", module === this.selected);
    if (isLeaf) row.removeAttribute("aria-expanded");
    else row.setAttribute("aria-expanded", isExpanded);
    row.tabIndex = fqn === this.focused ? 0 : -1;
    row.style.setProperty("--level", Math.min(level, 24));
    const [name, bar, subtree, own, share] = row.children;
    name.firstChild.textContent = isLeaf ? "" : isExpanded ? "▾" : "▸";
    name.lastChild.textContent = fqn === "Global" ? label(fqn) : clean(modules.name[module]) || '""';
    name.title = clean(fqn);
    fillBar(bar, held.subtree, module * COUNT, held.subtreeTotal[module], this.largestRoot());
    subtree.textContent = size(held.subtreeTotal[module]);
    own.textContent = held.ownTotal[module] ? size(held.ownTotal[module]) : "–";
    share.textContent = percent(held.subtreeTotal[module], held.total);
  }

  /* The bytes that a bar of full length stands for. */
  largestRoot() {
    return this.modules.roots.reduce((most, module) => Math.max(most, this.held.subtreeTotal[module]), 0);
  }

  /* ---- focus, expanding, selecting ---- */
  focusRow(fqn) {
    this.focused = fqn;
    for (const row of this.rows.children) {
      const here = row.dataset.fqn === fqn;
      row.tabIndex = here ? 0 : -1;
      if (here) row.focus({ preventScroll: false });
    }
  }

  setExpanded(module, isExpanded) {
    this.expanded.set(this.modules.fqn[module], isExpanded);
    this.render();
  }

  /* Expands all rows, or collapses them so that only the roots are left. */
  setAllExpanded(isExpanded) {
    this.expanded = new Map(this.modules.fqn.map((fqn) => [fqn, isExpanded]));
    this.render();
  }

  /* Expands a module's parents and scrolls to its row. */
  reveal(module) {
    if (module < 0) return;
    const { parent, fqn } = this.modules;
    for (let up = parent[module]; up >= 0; up = parent[up]) this.expanded.set(fqn[up], true);
    this.focused = fqn[module];
    const at = this.listRows().findIndex((row) => row.module === module);
    this.limit = Math.max(this.limit, at + 1);
    this.render();
    const row = this.rows.children[at];
    if (row) scrollWithin(this.rows, row);
  }

  /* Handles a key; returns whether the tree uses it. */
  handleKey(event) {
    const at = this.shown.findIndex((row) => this.modules.fqn[row.module] === this.focused);
    if (at < 0) return false;
    const { module, isExpanded, isLeaf } = this.shown[at];
    const go = (to) => this.focusRow(this.modules.fqn[this.shown[Math.min(Math.max(to, 0), this.shown.length - 1)].module]);
    switch (event.key) {
      case "ArrowDown": go(at + 1); return true;
      case "ArrowUp": go(at - 1); return true;
      case "Home": go(0); return true;
      case "End": go(this.shown.length - 1); return true;
      case "PageDown": go(at + 12); return true;
      case "PageUp": go(at - 12); return true;
      case "ArrowRight":
        if (!isLeaf && !isExpanded) this.setExpanded(module, true);
        else if (isExpanded) go(at + 1);
        return true;
      case "ArrowLeft":
        if (isExpanded) this.setExpanded(module, false);
        else if (this.modules.parent[module] >= 0) this.focusRow(this.modules.fqn[this.modules.parent[module]]);
        return true;
      case "Enter": case " ": this.select(module === this.selected ? -1 : module); return true;
      case "*": this.setAllExpanded(true); return true;
      default: return false;
    }
  }

  handleClick(event) {
    const row = event.target.closest(".row");
    if (!row) return;
    this.focused = row.dataset.fqn;
    if (event.target.classList.contains("arrow") && row.hasAttribute("aria-expanded"))
      this.setExpanded(row.module, row.getAttribute("aria-expanded") !== "true");
    else this.select(row.module === this.selected ? -1 : row.module);
  }
}

/* Scrolls the box to the row, but not the page. */
function scrollWithin(box, row) {
  const outer = box.getBoundingClientRect(), inner = row.getBoundingClientRect();
  if (inner.top < outer.top) box.scrollTop -= outer.top - inner.top;
  else if (inner.bottom > outer.bottom) box.scrollTop += inner.bottom - outer.bottom;
}

/* Fills a bar of categories whose length is total / most. */
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
