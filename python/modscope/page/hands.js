/* hands.js - pointer, wheel and keys: what they ask of the page. */

const DRAG = 4; /* pixels the pointer may move and still click */

/* What is told of a tick beside the pointer. */
function momentTip(page, tick) {
  const { capture, device } = page;
  const series = capture.series(device);
  const sums = series.sums(series.at(tick));
  const total = series.total[series.at(tick)];
  const rows = STACKED.filter((c) => sums[c] > 0).sort((a, b) => sums[b] - sums[a]).map((c) => {
    const row = make("tr", "", make("td", "", swatch(c)), make("td", "", CATEGORIES[c]), make("td", "figure", size(sums[c])), make("td", "figure", percent(sums[c], total)));
    row.dataset.category = CATEGORIES[c];
    row.dataset.bytes = sums[c];
    return row;
  });
  const parts = [
    make("div", "total", atLeast(capture, tick, size(total))),
    make("div", "", bdi(when(capture.spotAt(tick)))),
    make("table", "", make("tbody", "", ...rows)),
  ];
  const reserved = capture.reservedAt(tick, device);
  if (reserved) parts.push(make("div", "note", `${size(reserved)} reserved`));
  if (page.node >= 0) {
    const share = capture.series(device, page.node);
    parts.push(make("div", "note", bdi(label(capture.modules.fqn[page.node])), `: ${size(share.total[share.at(tick)])}`));
  }
  return parts;
}

function boxTip(page, box) {
  const { modules } = page.capture;
  const { held } = page;
  const node = box.node;
  const parts = [make("div", "total", bdi(label(modules.fqn[node])))];
  if (box.category >= 0) parts.push(make("div", "", make("span", "kind", swatch(box.category), `${CATEGORIES[box.category]} ${size(box.bytes)}`)));
  parts.push(make("div", "", `${size(held.wholeTotal[node])} with all below it, ${percent(held.wholeTotal[node], held.total)} of all`));
  if (held.ownTotal[node] !== held.wholeTotal[node]) parts.push(make("div", "", `${size(held.ownTotal[node])} itself`));
  return parts;
}

function atLeast(capture, tick, text) {
  return capture.isLowerBound(tick) ? `at least ${text}` : text;
}

function showTip(parts, x, y) {
  const tip = find("tip");
  tip.replaceChildren(...parts);
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  const left = x + 16 + width > innerWidth ? Math.max(x - width - 16, 4) : x + 16;
  tip.style.left = `${left}px`;
  tip.style.top = `${Math.min(Math.max(y - 20, 4), Math.max(innerHeight - height - 4, 4))}px`;
}

function hideTip() {
  find("tip").hidden = true;
}

/* ---- the timeline ---- */
function handleTimeline(page) {
  const box = find("timeline");
  const { timeline } = page;
  const pointers = new Map();
  let began = null, moved = false;
  const xOf = (event) => event.clientX - box.getBoundingClientRect().left;

  box.addEventListener("wheel", (event) => {
    const factor = Math.exp(Math.max(Math.min(event.deltaY * (event.deltaMode ? 20 : 1), 240), -240) * 0.0028);
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      const { from, to } = timeline.range();
      timeline.pan(((to - from) * event.deltaX) / 1200);
    } else if (factor > 1 && timeline.isWhole()) return; /* the page scrolls */
    else timeline.zoom(factor, timeline.placeAt(xOf(event)));
    event.preventDefault();
    page.redraw();
  }, { passive: false });

  box.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    box.setPointerCapture(event.pointerId);
    pointers.set(event.pointerId, xOf(event));
    began = { x: xOf(event), range: timeline.range() };
    moved = pointers.size > 1;
  });
  box.addEventListener("pointermove", (event) => {
    const x = xOf(event);
    if (pointers.has(event.pointerId)) {
      if (pointers.size === 2) pinch(page, pointers, event.pointerId, x);
      else if (moved || Math.abs(x - began.x) > DRAG) drag(page, began, x);
      moved ||= Math.abs(x - began.x) > DRAG;
      pointers.set(event.pointerId, x);
      box.classList.toggle("dragging", moved);
    }
    if (moved && pointers.size) return hideTip();
    page.hover(timeline.spotAt(x), event.clientX, event.clientY);
  });
  const up = (event) => {
    if (!pointers.delete(event.pointerId)) return;
    box.classList.remove("dragging");
    if (!moved && event.type === "pointerup") {
      const { tick, place } = timeline.spotAt(xOf(event));
      page.select(tick, place);
    }
    moved = pointers.size > 0;
  };
  box.addEventListener("pointerup", up);
  box.addEventListener("pointercancel", up);
  box.addEventListener("pointerleave", () => page.hover(null));
  box.addEventListener("dblclick", (event) => {
    timeline.zoom(0.25, timeline.placeAt(xOf(event)));
    page.redraw();
  });
}

function drag(page, began, x) {
  const { timeline } = page;
  const by = ((began.x - x) * (began.range.to - began.range.from)) / (timeline.right - timeline.left);
  timeline.look(began.range.from + by, began.range.to + by);
  page.redraw();
}

/* Two fingers: what is between them stays between them. */
function pinch(page, pointers, id, x) {
  const { timeline } = page;
  const other = [...pointers].find(([key]) => key !== id)[1];
  const before = Math.abs(pointers.get(id) - other), now = Math.abs(x - other);
  if (before < 8 || now < 8) return;
  timeline.zoom(before / now, timeline.placeAt((x + other) / 2));
  page.redraw();
}

/* The bar below it, by which a view that is zoomed in is moved. */
function handleScroll(page) {
  const bar = find("scroll");
  const go = (event) => {
    const { left, width } = bar.getBoundingClientRect();
    const domain = page.timeline.domain(), { from, to } = page.timeline.range();
    const middle = domain.from + ((event.clientX - left) / width) * (domain.to - domain.from);
    page.timeline.look(middle - (to - from) / 2, middle + (to - from) / 2);
    page.redraw();
  };
  bar.addEventListener("pointerdown", (event) => {
    bar.setPointerCapture(event.pointerId);
    go(event);
  });
  bar.addEventListener("pointermove", (event) => {
    if (bar.hasPointerCapture(event.pointerId)) go(event);
  });
}

/* ---- the treemap ---- */
function handleTreemap(page) {
  const canvas = find("treemap");
  const at = (event) => {
    const { left, top } = canvas.getBoundingClientRect();
    return page.treemap.at(event.clientX - left, event.clientY - top);
  };
  canvas.addEventListener("pointermove", (event) => {
    const box = at(event);
    if (box) showTip(boxTip(page, box), event.clientX, event.clientY);
    else hideTip();
  });
  canvas.addEventListener("pointerleave", hideTip);
  canvas.addEventListener("click", (event) => {
    const box = at(event);
    if (!box) return;
    const node = box.node === page.node ? -1 : box.node;
    page.choose(node);
    page.tree.reveal(node);
  });
  canvas.addEventListener("dblclick", (event) => {
    const box = at(event);
    if (box) page.enter(box.node);
  });
}

/* ---- keys ---- */
function timelineKey(page, event) {
  const series = page.capture.series(page.device);
  const at = series.at(page.tick);
  const to = {
    ArrowLeft: page.tick > series.tick[at] ? at : at - 1, ArrowRight: at + 1,
    PageDown: at + 100, PageUp: at - 100, Home: 0, End: series.count - 1,
  }[event.key];
  if (to === undefined) return false;
  page.select(series.tick[Math.min(Math.max(to, 0), series.count - 1)]);
  page.keepInView();
  return true;
}

function pageKey(page, event) {
  const actions = {
    "/": () => find("search").focus(),
    "?": () => find("help").showModal(),
    "+": () => page.zoom(0.5), "=": () => page.zoom(0.5), "-": () => page.zoom(2), "_": () => page.zoom(2),
    "0": () => page.zoom(0),
    "[": () => page.goStep(-1), "]": () => page.goStep(1),
    p: () => page.goPeak(), o: () => page.goOom(), t: () => page.turnTheme(),
    Escape: () => page.choose(-1),
  };
  const action = Object.hasOwn(actions, event.key) ? actions[event.key] : null;
  action?.();
  return Boolean(action);
}

function handleKeys(page) {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || find("help").open) return;
    const on = document.activeElement;
    if (on?.matches("input, select, textarea")) return;
    const inTree = find("rows").contains(on);
    const done = (inTree && page.tree.key(event)) ||
      ((on === document.body || on === find("timeline")) && timelineKey(page, event)) || pageKey(page, event);
    if (done) event.preventDefault();
  });
  const search = find("search");
  search.addEventListener("input", () => page.searchFor(search.value));
  search.addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      search.value = "";
      page.searchFor("");
      search.blur();
    } else if (event.key === "Enter" && page.tree.found.length) {
      page.chooseModule(page.capture.modules.fqn[page.tree.found[0]]);
      page.tree.focusRow(page.tree.focused);
    } else if (event.key === "ArrowDown" && page.tree.shown.length) {
      page.tree.focusRow(page.tree.focused);
    } else return;
    event.preventDefault();
    event.stopPropagation();
  });
}
