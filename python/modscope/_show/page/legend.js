/* legend.js - the groups in words: the switch between groupings, the legend, and the rows of a tooltip. */

function describeGroupings(page) {
  const shown = groupingsOf(page.capture);
  for (const button of find("groupings").children) button.hidden = !shown.includes(button.dataset.by);
}

/* The label of a group {by, key}. */
function labelOfGroup(capture, { by, key }) {
  const keys = capture.keys(by);
  return keys.labels[keys.numbers.get(key)] ?? shorten(clean(key));
}

/* Tests find a group by these. */
function nameGroup(element, grouping, group, bytes) {
  if (grouping.by === "category") element.dataset.category = CATEGORIES[group];
  else element.dataset.group = grouping.key(group) ?? "others";
  element.dataset.bytes = bytes;
}

/* What each group holds at the selected moment. A click on a group selects it. */
function describeLegend(page, series) {
  const { held, tick } = page, { grouping } = page.timeline;
  const kinds = grouping.by === "category" ? page.capture.kindsAt(tick, page.device) : {};
  const layers = series.by(grouping);
  const sums = layers.sumsAfter(layers.changeAt(tick));
  const shown = grouping.order.filter((group) => layers.everHeld[group]);
  if (grouping.by === "category") shown.reverse();
  const legend = find("legend");
  const focused = legend.contains(document.activeElement) ? document.activeElement.closest("li").dataset : null;
  legend.setAttribute("aria-label", `Bytes by ${grouping.by}`);
  legend.className = grouping.by;
  legend.replaceChildren(...shown.map((group) => {
    const figures = [make("strong", "", size(sums[group])), make("span", "share", percent(sums[group], held.total))];
    const key = grouping.key(group), parts = [grouping.swatch(group), bdi(grouping.label(group), "label")];
    const item = make("li", sums[group] ? "" : "none", key === null ? make("span", "entry", ...parts)
      : makeEntry(page, grouping, key, parts), ...figures);
    if (grouping.by === "category") item.append(...makeKinds(group, kinds));
    nameGroup(item, grouping, group, sums[group]);
    return item;
  }));
  const isFocused = ({ dataset }) => focused.category === dataset.category && focused.group === dataset.group;
  if (focused) [...legend.children].find(isFocused)?.querySelector("button")?.focus({ preventScroll: true });
}

function makeEntry(page, grouping, key, parts) {
  const button = makeButton("entry", ...parts);
  const isSelected = page.group?.by === grouping.by && page.group.key === key;
  button.title = isSelected ? "Clear the selection" : clean(key);
  button.setAttribute("aria-pressed", isSelected);
  button.addEventListener("click", () => page.selectGroup(isSelected ? null : { by: grouping.by, key }));
  return button;
}

/* The groups that hold something at a tick, as rows of a table, the largest first; the row of `marked` is marked. */
function groupRows(grouping, series, tick, marked) {
  const layers = series.by(grouping);
  const sums = layers.sumsAfter(layers.changeAt(tick)), total = layers.totalAt(tick);
  return grouping.order.filter((group) => sums[group] > 0).sort((a, b) => sums[b] - sums[a]).map((group) => {
    const cells = [["", grouping.swatch(group)], ["", bdi(grouping.label(group))], ["figure", size(sums[group])],
      ["figure", percent(sums[group], total)]];
    const row = make("tr", group === marked ? "marked" : "",
      ...cells.map(([className, inside]) => make("td", className, inside)));
    nameGroup(row, grouping, group, sums[group]);
    return row;
  });
}
