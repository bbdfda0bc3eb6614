/* grouping.js - what the areas of the timeline and of the treemap stand for: categories, or the modules, operators or
 * lines that hold most.
 *
 * A *key* names a module, an operator or a line; every template has one. Modules that differ only in the numbers of
 * their
 * layers share a key ("GPT.h.*.mlp"). A *group* is a number: an area with a colour of its own. The keys that hold most
 * have one each, and "others" have the last one. */

const GROUPINGS = ["category", "module", "operator", "line"];
const LARGEST_GROUPS = 9; /* that have an area of their own */

/* The keys of the templates, by number. */
class Keys {
  constructor(capture, by) {
    this.by = by;
    this.texts = [];
    this.labels = []; /* as the page shows them */
    this.numbers = new Map();
    const read = Keys.readers(capture)[by];
    this.templateKey = Uint32Array.from(capture.templateStack, (_, template) => this.add(...read(template)));
  }

  add(text, label) {
    if (!this.numbers.has(text)) {
      this.numbers.set(text, this.texts.length);
      this.texts.push(text);
      this.labels.push(label);
    }
    return this.numbers.get(text);
  }

  /* For each grouping, the text and the label of a template's key. */
  static readers(capture) {
    const { modules, stacks, templateStack } = capture;
    const patterns = modules.fqn.map(mergeNumbers);
    const uses = new Map();
    for (const module of new Set(modules.templateModule))
      uses.set(patterns[module], (uses.get(patterns[module]) ?? 0) + 1);
    const place = (template) => stacks.place(templateStack[template]);
    return {
      category: (template) =>
        [CATEGORIES[capture.templateCategory[template]], CATEGORIES[capture.templateCategory[template]]],
      module: (template) => {
        const module = modules.templateModule[template];
        const text = uses.get(patterns[module]) > 1 ? patterns[module] : modules.fqn[module];
        return [text, label(text)];
      },
      operator: (template) => {
        const text = place(template).operator ?? "(operator not known)";
        return [text, shorten(clean(text))];
      },
      line: (template) => [place(template).key, shorten(clean(place(template).describe()))],
    };
  }

  /* The numbers of the keys that hold most at a tick. `mask` limits the templates, or is null. */
  largestAt(capture, tick, device, mask) {
    const sums = this.sumsAt(capture, tick, device, mask);
    return [...sums.keys()].filter((key) => sums[key] > 0).sort((a, b) => sums[b] - sums[a] || a - b).slice(0,
      LARGEST_GROUPS);
  }

  sumsAt(capture, tick, device, mask) {
    const sums = new Float64Array(this.texts.length);
    capture.eachHeld(tick, device, (lifetime) => {
      const template = capture.template[lifetime];
      if (!mask || mask[template]) sums[this.templateKey[template]] += capture.templateBytes[template];
    });
    return sums;
  }
}

/* The grouping by category. */
class CategoryGrouping {
  constructor(capture) {
    this.by = "category";
    this.count = COUNT;
    this.order = STACKED; /* from the bottom */
    this.templateGroup = capture.templateCategory;
  }

  letter(group) {
    return LETTERS[group];
  }

  label(group) {
    return CATEGORIES[group];
  }

  /* What names the group in the address, or null for "others". */
  key(group) {
    return CATEGORIES[group];
  }

  swatch(group) {
    return swatch(group);
  }

  fill(theme, context, group, rectangle) {
    theme.fillCategory(context, group, rectangle);
  }
}

/* The grouping by the keys that hold most. */
class KeyGrouping {
  /* `chosen`: the key's number for each group, or -1. */
  constructor(keys, chosen) {
    this.by = keys.by;
    this.keys = keys;
    this.chosen = chosen;
    this.others = LARGEST_GROUPS;
    this.count = LARGEST_GROUPS + 1;
    this.order = Array.from({ length: this.count }, (_, group) => group);
    const groups = new Uint8Array(keys.texts.length).fill(this.others);
    chosen.forEach((key, group) => key >= 0 && (groups[key] = group));
    this.templateGroup = Uint8Array.from(keys.templateKey, (key) => groups[key]);
  }

  letter(group) {
    return group === this.others ? "…" : String(group + 1);
  }

  /* A line is shown without the folders of its file. */
  label(group) {
    const text = group === this.others ? "others" : this.keys.labels[this.chosen[group]] ?? "";
    return this.by === "line" ? withoutFolders(text) : text;
  }

  key(group) {
    return group === this.others ? null : this.keys.texts[this.chosen[group]] ?? null;
  }

  swatch(group) {
    const mark = make("span", "swatch", this.letter(group));
    mark.dataset.group = group === this.others ? "others" : group + 1;
    mark.setAttribute("aria-hidden", "true");
    return mark;
  }

  fill(theme, context, group, rectangle) {
    theme.fillGroup(context, group, rectangle);
  }
}

/* "src/model.py:41 in forward" as "model.py:41 in forward" */
function withoutFolders(text) {
  return text.replace(/^.*[/](?=[^/]*:(\d+|[?]) in )/, "");
}

/* The keys for the groups. One that had a group keeps it, so that its colour does not change. */
function assignGroups(largest, before) {
  const chosen = before.map((key) => (largest.includes(key) ? key : -1));
  for (const key of largest) if (!chosen.includes(key)) chosen[chosen.indexOf(-1)] = key;
  return chosen;
}

/* The groupings that a capture has: operators and lines only if some are known. */
function groupingsOf(capture) {
  return capture.stacks.areKnown ? GROUPINGS : GROUPINGS.slice(0, 2);
}

/* The grouping of what the timeline shows: the keys that hold most where most was held in its range. If something is
 * selected, of that; but the lines' colours do not change when one of them is selected. */
function groupingFor(page, before) {
  const { capture, device, by, timeline } = page;
  if (by === "category") return before?.by === by && before.capture === capture ? before
    : Object.assign(new CategoryGrouping(capture), { capture });
  const group = page.group?.by === by ? null : page.group;
  const series = capture.series(device, page.module, group);
  const { from, to } = timeline.range();
  const peak = series.maximumIn(series.changeAt(timeline.tickAt(from)), series.changeAt(timeline.tickAt(to)));
  const keys = capture.keys(by);
  const largest = keys.largestAt(capture, series.tick[peak], device, capture.templateMask(page.module, group));
  const isSame = before?.keys === keys;
  if (isSame && largest.every((key) => before.chosen.includes(key))
    && before.chosen.every((key) => key < 0 || largest.includes(key))) return before;
  return new KeyGrouping(keys, assignGroups(largest, isSame ? before.chosen : new Array(LARGEST_GROUPS).fill(-1)));
}

/* The group {by, key} if the capture has it, or null. */
function findGroup(capture, group) {
  if (!group?.by || !groupingsOf(capture).includes(group.by)) return null;
  return capture.keys(group.by).numbers.has(group.key) ? { by: group.by, key: group.key } : null;
}
