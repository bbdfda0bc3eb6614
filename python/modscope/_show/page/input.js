/* input.js - what the pointer, the wheel and the keys do. */

const DRAG = 4; /* A press that moves the pointer by at most this many pixels is a click. */

/* ---- the timeline ---- */
function handleTimeline(page) {
  const box = find("timeline");
  const { timeline } = page;
  const pointers = new Map(); /* the x of each pressed pointer, by its id */
  let pressed = null, isDragging = false;
  const xOf = (event) => event.clientX - box.getBoundingClientRect().left, yOf = (event) =>
    event.clientY - box.getBoundingClientRect().top;

  box.addEventListener("wheel", (event) => handleWheel(page, event, xOf(event)), { passive: false });
  box.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    box.setPointerCapture(event.pointerId);
    pointers.set(event.pointerId, xOf(event));
    pressed = { x: xOf(event), range: timeline.range() };
    isDragging = pointers.size > 1;
  });
  box.addEventListener("pointermove", (event) => {
    const x = xOf(event);
    if (pointers.has(event.pointerId)) {
      if (pointers.size === 2) pinch(page, pointers, event.pointerId, x);
      else if (isDragging || Math.abs(x - pressed.x) > DRAG) pans(event) ? drag(page, pressed, x)
        : page.markRange(pressed.x, x);
      isDragging ||= Math.abs(x - pressed.x) > DRAG;
      pointers.set(event.pointerId, x);
      box.classList.toggle("dragging", isDragging);
    }
    if (isDragging && pointers.size) return hideTooltip();
    page.hover(timeline.pointAt(x), event.clientX, event.clientY, timeline.groupAt(x, yOf(event)));
  });
  const release = (event) => {
    if (!pointers.delete(event.pointerId)) return;
    box.classList.remove("dragging");
    const isMarked = page.marked !== null;
    page.markRange(null);
    if (isMarked && event.type === "pointerup") zoomTo(page, pressed.x, xOf(event));
    if (!isDragging && event.type === "pointerup") {
      const { tick, coordinate } = timeline.pointAt(xOf(event));
      const { grouping } = timeline, group = grouping.by === "category" ? -1 : timeline.groupAt(xOf(event), yOf(event));
      page.selectTick(tick, coordinate);
      if (group >= 0 && grouping.key(group) !== null) page.selectGroup({ by: grouping.by, key: grouping.key(group) });
    }
    isDragging = pointers.size > 0;
  };
  box.addEventListener("pointerup", release);
  box.addEventListener("pointercancel", release);
  box.addEventListener("pointerleave", () => page.hover(null));
  box.addEventListener("dblclick", (event) => {
    timeline.zoom(0.25, timeline.coordinateAt(xOf(event)));
    page.redraw();
  });
}

/* Zooms, or pans with a horizontal wheel. Where there is nothing to zoom out of, the page scrolls. */
function handleWheel(page, event, x) {
  const { timeline } = page;
  const factor = Math.exp(Math.max(Math.min(event.deltaY * (event.deltaMode ? 20 : 1), 240), -240) * 0.0028);
  if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
    const { from, to } = timeline.range();
    timeline.pan(((to - from) * event.deltaX) / 1200);
  } else if (factor > 1 && !timeline.isZoomed()) return;
  else timeline.zoom(factor, timeline.coordinateAt(x));
  event.preventDefault();
  page.redraw();
}

/* A finger pans, as it does everywhere, and so does a mouse with Shift; a mouse alone marks the part to zoom to. */
function pans(event) {
  return event.shiftKey || event.pointerType === "touch";
}

function zoomTo(page, a, b) {
  const { timeline } = page;
  const at = (x) => timeline.coordinateAt(Math.min(Math.max(x, timeline.left), timeline.right));
  timeline.setRange(at(Math.min(a, b)), at(Math.max(a, b)));
  page.redraw();
}

function drag(page, pressed, x) {
  const { timeline } = page;
  const by = ((pressed.x - x) * (pressed.range.to - pressed.range.from)) / (timeline.right - timeline.left);
  timeline.setRange(pressed.range.from + by, pressed.range.to + by);
  page.redraw();
}

/* Zooms with two fingers: the part between them stays between them. */
function pinch(page, pointers, id, x) {
  const { timeline } = page;
  const other = [...pointers].find(([key]) => key !== id)[1];
  const before = Math.abs(pointers.get(id) - other), now = Math.abs(x - other);
  if (before < 8 || now < 8) return;
  timeline.zoom(before / now, timeline.coordinateAt((x + other) / 2));
  page.redraw();
}

/* The scroll bar below the timeline pans it while it is zoomed in. */
function handleScrollBar(page) {
  const bar = find("scroll");
  const centreAt = (event) => {
    const { left, width } = bar.getBoundingClientRect();
    const domain = page.timeline.domain(), { from, to } = page.timeline.range();
    const middle = domain.from + ((event.clientX - left) / width) * (domain.to - domain.from);
    page.timeline.setRange(middle - (to - from) / 2, middle + (to - from) / 2);
    page.redraw();
  };
  bar.addEventListener("pointerdown", (event) => {
    bar.setPointerCapture(event.pointerId);
    centreAt(event);
  });
  bar.addEventListener("pointermove", (event) => {
    if (bar.hasPointerCapture(event.pointerId)) centreAt(event);
  });
}

/* ---- the treemap ---- */
function handleTreemap(page) {
  const canvas = find("treemap");
  const boxUnder = (event) => {
    const { left, top } = canvas.getBoundingClientRect();
    return page.treemap.boxAt(event.clientX - left, event.clientY - top);
  };
  canvas.addEventListener("pointermove", (event) => {
    const box = boxUnder(event);
    if (box) showTooltip(boxTooltip(page, box), event.clientX, event.clientY);
    else hideTooltip();
  });
  canvas.addEventListener("pointerleave", hideTooltip);
  canvas.addEventListener("click", (event) => {
    const box = boxUnder(event);
    if (!box) return;
    const module = box.module === page.module ? -1 : box.module;
    page.selectModule(module);
    page.tree.reveal(module);
  });
  canvas.addEventListener("dblclick", (event) => {
    const box = boxUnder(event);
    if (box) page.setTreemapRoot(box.module);
  });
}

/* ---- keys ---- */

/* Handles a key of the timeline; returns whether it is one. */
function handleTimelineKey(page, event) {
  const series = page.capture.series(page.device);
  const at = series.changeAt(page.tick);
  const to = {
    ArrowLeft: page.tick > series.tick[at] ? at : at - 1, ArrowRight: at + 1,
    PageDown: at + 100, PageUp: at - 100, Home: 0, End: series.count - 1,
  }[event.key];
  if (to === undefined) return false;
  page.selectTick(series.tick[Math.min(Math.max(to, 0), series.count - 1)]);
  page.keepInView();
  return true;
}

/* Handles a key of the whole page; returns whether it is one. */
function handlePageKey(page, event) {
  const actions = {
    "/": () => find("search").focus(),
    "?": () => find("help").showModal(),
    "+": () => page.zoom(0.5), "=": () => page.zoom(0.5), "-": () => page.zoom(2), "_": () => page.zoom(2),
    "0": () => page.showAll(false), "1": () => page.showAll(true),
    "[": () => page.goToStep(-1), "]": () => page.goToStep(1),
    p: () => page.goToPeak(), o: () => page.goToOom(), t: () => page.toggleTheme(),
    f: () => find("flame-search").focus(),
    w: () => page.nextChange(1), W: () => page.nextChange(-1),
    c: () => page.nextGrouping(1), C: () => page.nextGrouping(-1),
    Escape: () => page.selectModule(-1),
  };
  const action = Object.hasOwn(actions, event.key) ? actions[event.key] : null;
  action?.();
  return Boolean(action);
}

function handleKeys(page) {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || find("help").open) return;
    const focused = document.activeElement;
    if (focused?.matches("input:not([type=radio]), select, textarea")) return;
    const inTree = find("rows").contains(focused), inTimeline = focused === document.body
      || focused === find("timeline");
    const inFlame = focused === find("flame-box"), inSegments = focused === find("segments-box");
    const isHandled = (inFlame && page.flame.handleKey(event)) || (inSegments && page.segments.handleKey(event))
      || (inTree && page.tree.handleKey(event)) || (inTimeline && handleTimelineKey(page, event))
      || handlePageKey(page, event);
    if (isHandled) event.preventDefault();
  });
  const search = find("search");
  search.addEventListener("input", () => page.searchFor(search.value));
  search.addEventListener("keydown", (event) => handleSearchKey(page, search, event));
}

function handleSearchKey(page, search, event) {
  const { tree } = page;
  if (event.key === "Escape") {
    search.value = "";
    page.searchFor("");
    search.blur();
  } else if (event.key === "Enter" && tree.found.length) {
    page.selectModuleByName(page.capture.modules.fqn[tree.found[0]]);
    tree.focusRow(tree.focused);
  } else if (event.key === "ArrowDown" && tree.shown.length) {
    tree.focusRow(tree.focused);
  } else return;
  event.preventDefault();
  event.stopPropagation();
}
