/* tree.js - the module tree of a moment, as rows that can be expanded, sorted and searched. */

const ROWS_AT_FIRST = 40;  /* The tree is expanded at first as deep as this many rows allow. */
const ROWS_SHOWN = 400;    /* Further rows are added on request. */
const BAR = { least: 60, most: 140 }; /* width of the category bars in pixels */

class Tree {
  /* `rows`: the element that contains the rows; `alike`: which modules are shown as one; `select(module)`: called when
     a row
   * is selected. */
  constructor(rows, alike, select) {
    this.rows = rows;
    this.alike = alike;
    this.select = select;
    this.sort = "subtree";
    this.isDescending = true;
    this.search = "";
    this.limit = ROWS_SHOWN;
    this.bar = BAR.most;
    this.focused = null; /* key of the row that has the Tab stop: a module's fqn, or a unit's key */
    this.changed = () => {}; /* called when like modules were folded or unfolded */
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
    const byName = compareNames(modules.name[a.module], modules.name[b.module]);
    const bytes = ({ module, members }) => by[module] * (members?.length ?? 1);
    return (by ? bytes(a) - bytes(b) : byName) * (this.isDescending ? -1 : 1) || byName;
  }

  /* The rows below a module: its children, of which those that are alike are one. What is searched for is shown as it
     is. */
  unitsOf(module) {
    const children = this.childrenOf(module);
    const units = this.matches ? children.map((each) => ({ module: each, members: null, key: this.modules.fqn[each] }))
      : this.alike.unitsOf(module, children);
    return units.sort((a, b) => this.compare(a, b));
  }

  /* The children that have rows; -1 stands for the parent of the roots. */
  childrenOf(module) {
    const children = module < 0 ? this.modules.roots : this.modules.children[module];
    return children.filter((each) => this.held.subtreeTotal[each] > 0 && (!this.matches || this.matches[each]));
  }

  /* The deepest level to which the tree can be expanded within ROWS_AT_FIRST rows. */
  fittingDepth() {
    const withMemory = (modules) => modules.filter((each) => this.held.subtreeTotal[each] > 0);
    const unitsOf = (module, children) => this.alike.unitsOf(module, withMemory(children));
    let level = unitsOf(-1, this.modules.roots), rows = level.length, depth = 0;
    while (level.length) {
      level = level.filter(({ members }) => !members).flatMap(({ module }) =>
        unitsOf(module, this.modules.children[module]));
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
      const isLeaf = !this.childrenOf(module).length;
      const isExpanded = module < 0 || (!isLeaf && this.isExpanded(module, level));
      if (module >= 0) rows.push({ module, members: null, key: this.modules.fqn[module], level, isExpanded, isLeaf });
      if (isExpanded) for (const unit of this.unitsOf(module)) visitUnit(unit, level + 1);
    };
    const visitUnit = (unit, level) => {
      if (!unit.members) return visit(unit.module, level);
      const isExpanded = this.alike.isUnfolded(unit);
      rows.push({ ...unit, level, isExpanded, isLeaf: false });
      if (isExpanded) for (const member of unit.members) visit(member, level + 1);
    };
    visit(-1, -1);
    return rows;
  }

  /* ---- rows ---- */
  render() {
    this.findMatches();
    this.shown = this.listRows();
    if (!this.shown.some((row) => row.key === this.focused)) this.focused = this.shown.length ? this.shown[0].key
      : null;
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
    const needed = Math.max(
      ...names.map((name) => name.lastChild.offsetLeft - name.offsetLeft + name.lastChild.scrollWidth + 1));
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
    find("tree-none").textContent = this.search ? "No module that owns memory matches this name."
      : "No memory is allocated at this moment.";
    find("found").textContent = this.search ? counted(this.found.length, "module") : "";
  }

  makeRow() {
    const arrow = make("span", "arrow");
    arrow.setAttribute("aria-hidden", "true");
    const name = make("span", "name", arrow, bdi("", "fqn"));
    const cells = [name, make("span", "bar"), make("span", "figure subtree"), make("span", "figure own"),
      make("span", "figure share")];
    const row = make("div", "row", ...cells);
    row.setAttribute("role", "row");
    for (const cell of cells) cell.setAttribute("role", "gridcell");
    return row;
  }

  fillRow(row, unit) {
    const { modules, held } = this, { module, members, key, level, isExpanded, isLeaf } = unit;
    const count = members?.length ?? 1, own = held.ownTotal[module] * count,
      subtree = held.subtreeTotal[module] * count;
    const all = (sums) => sums.subarray(module * COUNT, (module + 1) * COUNT).map((bytes) => bytes * count);
    const ownBy = all(held.own), subtreeBy = all(held.subtree);
    row.unit = unit;
    Object.assign(row.dataset,
      { fqn: key, own, subtree, ownBy: JSON.stringify(bytesByCategory(ownBy)),
      subtreeBy: JSON.stringify(bytesByCategory(subtreeBy)), count });
    row.setAttribute("aria-level", level + 1);
    row.setAttribute("aria-selected", !members && module === this.selected);
    if (isLeaf) row.removeAttribute("aria-expanded");
    else row.setAttribute("aria-expanded", isExpanded);
    row.tabIndex = key === this.focused ? 0 : -1;
    row.style.setProperty("--level", Math.min(level, 24));
    const [name, bar, subtreeCell, ownCell, share] = row.children;
    name.firstChild.textContent = isLeaf ? "" : isExpanded ? "▾" : "▸";
    name.lastChild.textContent = members ? `${unit.numbers} (${count} alike)` : key === "Global" ? label(key)
      : clean(modules.name[module]) || '""';
    name.title = members ? `${clean(key)}: ${size(held.subtreeTotal[module])} each. Click to show each` : clean(key);
    fillBar(bar, subtreeBy, 0, subtree, this.largestRoot());
    subtreeCell.textContent = size(subtree);
    ownCell.textContent = own ? size(own) : "–";
    share.textContent = percent(subtree, held.total);
  }

  /* The bytes that a bar of full length stands for. */
  largestRoot() {
    return this.modules.roots.reduce((most, module) => Math.max(most, this.held.subtreeTotal[module]), 0);
  }

  /* ---- focus, expanding, selecting ---- */
  focusRow(key) {
    this.focused = key;
    for (const row of this.rows.children) {
      const here = row.dataset.fqn === key;
      row.tabIndex = here ? 0 : -1;
      if (here) row.focus({ preventScroll: false });
    }
  }

  setExpanded({ members, key }, isExpanded) {
    if (!members) this.expanded.set(key, isExpanded);
    else if (isExpanded) this.alike.unfolded.add(key);
    else this.alike.unfolded.delete(key);
    this.render();
    if (members) this.changed();
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
    this.alike.reveal(module);
    for (let up = parent[module]; up >= 0; up = parent[up]) this.expanded.set(fqn[up], true);
    this.focused = fqn[module];
    const at = this.listRows().findIndex((row) => row.key === fqn[module]);
    this.limit = Math.max(this.limit, at + 1);
    this.render();
    const row = this.rows.children[at];
    if (row) scrollWithin(this.rows, row);
  }

  /* Handles a key; returns whether the tree uses it. */
  handleKey(event) {
    const at = this.shown.findIndex((row) => row.key === this.focused);
    if (at < 0) return false;
    const unit = this.shown[at], { level, isExpanded, isLeaf } = unit;
    const go = (to) => this.focusRow(this.shown[Math.min(Math.max(to, 0), this.shown.length - 1)].key);
    switch (event.key) {
      case "ArrowDown": go(at + 1); return true;
      case "ArrowUp": go(at - 1); return true;
      case "Home": go(0); return true;
      case "End": go(this.shown.length - 1); return true;
      case "PageDown": go(at + 12); return true;
      case "PageUp": go(at - 12); return true;
      case "ArrowRight":
        if (!isLeaf && !isExpanded) this.setExpanded(unit, true);
        else if (isExpanded) go(at + 1);
        return true;
      case "ArrowLeft":
        if (isExpanded) this.setExpanded(unit, false);
        else if (level) go(this.shown.findLastIndex((row, i) => i < at && row.level < level));
        return true;
      case "Enter": case " ": this.choose(unit); return true;
      case "*": find("open-all").click(); return true;
      default: return false;
    }
  }

  /* Selects a module, or clears the selection; shows the members of several that are alike, or folds them again. */
  choose(unit) {
    if (unit.members) this.setExpanded(unit, !unit.isExpanded);
    else this.select(unit.module === this.selected ? -1 : unit.module);
  }

  handleClick(event) {
    const row = event.target.closest(".row");
    if (!row) return;
    this.focused = row.dataset.fqn;
    if (event.target.classList.contains("arrow") && row.hasAttribute("aria-expanded"))
      this.setExpanded(row.unit, row.getAttribute("aria-expanded") !== "true");
    else this.choose(row.unit);
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
