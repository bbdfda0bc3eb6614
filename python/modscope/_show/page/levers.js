/* levers.js - what would help: the changes that modscope fit and modscope plan propose, of which one may be chosen. The
 * timeline draws it (edited.js); plans.js draws the plot of plans. */

/* The changes of a capture: {part, index, change, name, text}, where part is "fit" or "plan". */
function listChanges(metadata) {
  const { fit, plan } = metadata;
  const levers = (fit?.levers ?? []).map((change, index) => ({ part: "fit", index, change }));
  const points = (plan?.points ?? []).map((change, index) => ({ part: "plan", index, change }));
  return [...levers, ...points.filter(({ change }) => change.modules)].map((each) =>
    ({ ...each, name: each.change.name, text: each.change.text }));
}

/* The change of this key ("fit-2"), or null. Without a key the plan that the command found. */
function findChange(metadata, key) {
  const changes = listChanges(metadata);
  if (key === undefined) return changes.find(({ part, change }) => part === "plan" && change.is_plan) ?? null;
  return changes.find((each) => keyOf(each) === key) ?? null;
}

function keyOf(change) {
  return change ? `${change.part}-${change.index}` : "none";
}

/* The line of what the GPU, or the budget, has. */
function capacityOf(metadata) {
  const part = metadata.fit ?? metadata.plan;
  return part ? { bytes: part.capacity, device: part.device, text: part.gpu ?? "budget" } : null;
}

/* ---- the table ---- */

/* Shows the levers of modscope fit; `choose` is called with a change, or with null. */
function fillLevers(metadata, choose) {
  const { fit } = metadata;
  find("fit").hidden = !fit;
  if (!fit) return;
  find("fit-text").replaceChildren(bdi(fit.text));
  find("levers-verb").textContent = fit.verb;
  find("levers-box").hidden = !fit.levers.length;
  const asItIs = { name: "as it is", reserved: fit.before, fits: fit.fits, answer: fit.answer, cost: "" };
  const changes = listChanges(metadata).filter(({ part }) => part === "fit");
  const rows = [makeLeverRow(asItIs, null, choose), ...changes.map((each) => makeLeverRow(each.change, each, choose))];
  find("levers").tBodies[0].replaceChildren(...rows);
}

function makeLeverRow(lever, change, choose) {
  const row = make("tr");
  Object.assign(row.dataset, { key: keyOf(change), name: lever.name, bytes: lever.reserved, fits: lever.fits });
  const input = make("input");
  Object.assign(input, { type: "radio", name: "lever" });
  input.addEventListener("change", () => choose(change));
  addCell(row, make("label", "lever", input, bdi(lever.name)));
  addCell(row, `${lever.is_approximate ? "about " : ""}${size(lever.reserved)}`, "figure");
  addCell(row, lever.answer, lever.answer === "yes" ? "fits" : "fits-not");
  addCell(row, lever.cost);
  row.addEventListener("click", (event) => {
    if (event.target.closest("label")) return;
    input.checked = true;
    choose(change);
  });
  return row;
}

/* ---- the chosen change ---- */
function describeChange(page) {
  const { change } = page, { metadata } = page.capture;
  const isShown = shownEdit(page.timeline) !== null;
  for (const row of find("levers").tBodies[0].rows) {
    const isChosen = row.dataset.key === keyOf(change);
    row.querySelector("input").checked = isChosen;
    row.toggleAttribute("aria-current", isChosen);
  }
  document.body.dataset.change = keyOf(change);
  find("edited").hidden = !change;
  if (change) {
    const where = isShown ? ""
      : ` It is not drawn here: it is of all modules of ${metadata.devices[metadata[change.part].device]}.`;
    sayChange(change.name, change.text + where);
  }
  fillLines(page, isShown);
  describePlan(page);
}

/* A sentence that stays the same is not written again: screen readers would repeat it. */
function sayChange(name, text) {
  const box = find("edited");
  if (box.textContent !== `With ${name}: ${text}`)
    box.replaceChildren(make("strong", "", "With ", bdi(name)), ": ", bdi(text));
}

/* The legend of the lines in the timeline. */
function fillLines(page, isShown) {
  const { timeline, capture, device } = page;
  const capacity = shownCapacity(timeline);
  const isCaching = timeline.edited?.isCaching;
  const lines = [];
  if (isShown && capture.reserved[device].ticks.length > 1) lines.push(["real", "reserved in the capture"]);
  if (isShown) lines.push(["edited-reserved", `${isCaching ? "reserved" : "allocated"} with the change`]);
  if (isShown && isCaching) lines.push(["edited-allocated", "allocated with the change"]);
  if (capacity && lines.length)
    lines.push(["capacity", `what ${capacity.text === "budget" ? "the budget is" : `${capacity.text} has`}`]);
  const list = find("lines");
  list.hidden = !lines.length;
  list.replaceChildren(...lines.map(([kind, text]) => {
    const sample = make("i", kind);
    sample.setAttribute("aria-hidden", "true");
    return make("li", "", sample, text);
  }));
}
