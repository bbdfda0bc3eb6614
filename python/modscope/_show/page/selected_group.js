/* selected_group.js - the panel about a selected group: a line with its source text, an operator, modules of one
 * name or a category. It lies above the lower end of the window, so that nothing else moves when it appears. */

const PLACE_ROWS = 6;

/* What a group {by, key} holds at the page's moment: bytes and blocks; bytes by [category, module], stack, operator,
 * line. */
function heldByGroup(page) {
  const { capture, group } = page;
  const mask = capture.templateMask(-1, group);
  const held = { bytes: 0, count: 0, owners: new Map(), stacks: new Map(), operators: new Map(), lines: new Map() };
  const add = (map, key, bytes) => map.set(key, (map.get(key) ?? 0) + bytes);
  capture.eachHeld(page.tick, page.device, (lifetime) => {
    const template = capture.template[lifetime];
    if (!mask[template]) return;
    const bytes = capture.templateBytes[template], stack = capture.templateStack[template],
      place = capture.stacks.place(stack);
    held.bytes += bytes;
    held.count++;
    add(held.owners, capture.modules.templateModule[template] * COUNT + capture.templateCategory[template], bytes);
    add(held.stacks, stack, bytes);
    if (place.operator) add(held.operators, place.operator, bytes);
    add(held.lines, place.key, bytes);
  });
  if (!held.count) held.stacks.set(capture.templateStack[mask.indexOf(1)], 0);
  return held;
}

function byFallingBytes(map) {
  return [...map].sort((a, b) => b[1] - a[1]);
}

/* Shows the selected group, or hides the panel. */
function describePlace(page) {
  const { group, capture } = page;
  const panel = find("place");
  if (!group && panel.contains(document.activeElement)) find("timeline").focus({ preventScroll: true });
  panel.hidden = !group;
  document.body.classList.toggle("has-place", Boolean(group));
  if (!group) return;
  const held = heldByGroup(page);
  const stacks = byFallingBytes(held.stacks);
  const place = capture.stacks.place(stacks[0][0]);
  Object.assign(panel.dataset, { by: group.by, key: group.key, bytes: held.bytes, count: held.count });
  find("place-title").replaceChildren(bdi(labelOfGroup(capture, group)));
  find("place-text").replaceChildren(...placeText(page, held));
  const isLine = group.by === "line" && place.frames.length > 0;
  find("place-source").hidden = !isLine;
  if (isLine) showFrame(page, place, page.frame < place.frames.length ? page.frame : 0);
  fillPlaceLines(page, held, isLine);
  fillOwners(page, held);
}

/* "3.20 MiB in 5 blocks at this moment (12%), made by torch.relu." */
function placeText(page, held) {
  const { capture, tick, group } = page;
  const total = page.held.total;
  const text = [`${atLeast(capture, tick, size(held.bytes))} in ${counted(held.count, "block")} at this moment (${percent(held.bytes, total)})`];
  const operators = byFallingBytes(held.operators);
  if (group.by === "line" && operators.length) {
    const named = operators.slice(0, 3).flatMap(([name, bytes], i) => {
      return [i ? ", " : ", made by ", makeGroupLink(page, "operator", name), operators.length > 1 ? ` (${size(bytes)})`
        : ""];
    });
    text.push(...named, operators.length > 3 ? `, and ${counted(operators.length - 3, "more operator")}` : "");
  }
  text.push(".");
  const paths = new Set([...held.stacks.keys()].map((stack) =>
    capture.stacks.place(stack).frames.map(describeFrame).join("\n")));
  if (group.by === "line" && paths.size > 1)
    text.push(` ${paths.size} stacks of frames lead here; the one that holds most is shown.`);
  return text;
}

/* A button that selects a group; its label may be cut. */
function makeGroupLink(page, by, key) {
  const button = makeButton("link", bdi(labelOfGroup(page.capture, { by, key })));
  button.title = clean(key);
  button.addEventListener("click", (event) => page.selectGroup({ by, key }, event.detail === 0));
  return button;
}

/* ---- frames and source text ---- */
function showFrame(page, place, shown) {
  const frames = place.frames.map((frame, i) => {
    const button = makeButton("link", bdi(shorten(clean(describeFrame(frame)))));
    button.setAttribute("aria-pressed", i === shown);
    button.addEventListener("click", () => {
      page.frame = i;
      showFrame(page, place, i);
      find("place-frames").children[i].firstChild.focus();
    });
    return make("li", "", button);
  });
  find("place-frames").hidden = frames.length < 2;
  find("place-frames").replaceChildren(...frames);
  fillSource(page.capture.stacks, place.frames[shown]);
}

function fillSource(stacks, frame) {
  const { note, lines } = stacks.source(frame);
  const box = find("place-code");
  box.hidden = !lines.length;
  box.replaceChildren(...lines.map(([number, text]) => {
    const row = make("span", number === frame.line ? "marked" : "", make("i", "", `${number} `),
      bdi(clean(text.replaceAll("\t", "    "))), "\n");
    row.dataset.line = number;
    if (number === frame.line) row.setAttribute("aria-current", "true");
    return row;
  }));
  const isOnly = !stacks.haveFramesAbove
    ? "The frames above this line were not recorded: modscope run --stacks 8 keeps them." : "";
  const name = bdi(clean(frame.shown));
  find("place-note").replaceChildren(...(note ? [name, `: ${note}. `] : []), isOnly);
}

/* ---- tables ---- */

/* The lines that made what the group holds. */
function fillPlaceLines(page, held, isLine) {
  const box = find("place-made");
  box.hidden = isLine || !page.capture.stacks.areKnown || !held.count;
  const rows = box.hidden ? [] : byFallingBytes(held.lines);
  find("place-made-more").textContent = rows.length > PLACE_ROWS
    ? `and ${counted(rows.length - PLACE_ROWS, "more line")}` : "";
  find("place-made-rows").tBodies[0].replaceChildren(...rows.slice(0, PLACE_ROWS).map(([key, bytes]) => {
    const row = make("tr");
    Object.assign(row.dataset, { key, bytes });
    addCell(row, size(bytes), "figure");
    addCell(row, makeGroupLink(page, "line", key), "line");
    return row;
  }));
}

/* Who owns what the group holds, by module and category. */
function fillOwners(page, held) {
  const { modules } = page.capture;
  const rows = byFallingBytes(held.owners);
  find("place-owners").hidden = !rows.length;
  find("place-owners-more").textContent = rows.length > PLACE_ROWS
    ? `and ${counted(rows.length - PLACE_ROWS, "more owner")}` : "";
  find("place-owners").tBodies[0].replaceChildren(...rows.slice(0, PLACE_ROWS).map(([owner, bytes]) => {
    const row = make("tr");
    const category = owner % COUNT, fqn = modules.fqn[Math.floor(owner / COUNT)];
    Object.assign(row.dataset, { bytes, category: CATEGORIES[category], fqn });
    addCell(row, size(bytes), "figure");
    addCategoryCell(row, category, false);
    addModuleCell(row, fqn, (name) => page.selectModuleByName(name));
    return row;
  }));
}
