/* paint.js - what both canvases use: their size, the colours of the theme, and patterns that distinguish categories
 * without colour. */

/* Fits the canvas to its element; returns its context, which counts in CSS pixels. */
function prepareCanvas(canvas) {
  const { width, height } = canvas.getBoundingClientRect();
  const scale = window.devicePixelRatio || 1;
  const columns = Math.max(Math.round(width * scale), 1), rows = Math.max(Math.round(height * scale), 1);
  if (canvas.width !== columns) canvas.width = columns;
  if (canvas.height !== rows) canvas.height = rows;
  const context = canvas.getContext("2d");
  context.setTransform(columns / (width || 1), 0, 0, rows / (height || 1), 0, 0);
  context.clearRect(0, 0, width, height);
  return { context, width, height };
}

/* Lines and dots on a tile of 8 x 8 pixels. Parameter and Activation, which are most often neighbours, are plain and
 * sloped. */
const STROKES = {
  Parameter: [],
  Buffer: [["dot", 2, 2], ["dot", 6, 6]],
  Gradient: [["line", 0, 8, 8, 0], ["line", -1, 1, 1, -1], ["line", 7, 9, 9, 7]],
  Activation: [["line", 0, 0, 8, 8], ["line", -1, 7, 1, 9], ["line", 7, -1, 9, 1]],
  Temp: [["line", 0, 2, 8, 2], ["line", 0, 6, 8, 6]],
  Optstate: [["line", 2, 0, 2, 8], ["line", 6, 0, 6, 8]],
  Other: [["line", 0, 4, 8, 4], ["line", 4, 0, 4, 8]],
};
/* Of the groups, "others" last. */
const GROUP_STROKES = [
  STROKES.Parameter, STROKES.Activation, STROKES.Buffer, STROKES.Temp, STROKES.Gradient, STROKES.Optstate,
  [...STROKES.Activation, ...STROKES.Gradient], [["line", 0, 4, 8, 4]], [["line", 4, 0, 4, 8]], STROKES.Other,
];

function makeTile(strokes, colour) {
  const canvas = document.createElement("canvas");
  const scale = Math.max(window.devicePixelRatio || 1, 1);
  canvas.width = canvas.height = 8 * scale;
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  context.strokeStyle = context.fillStyle = colour;
  for (const [shape, x, y, toX, toY] of strokes) {
    context.beginPath();
    if (shape === "dot") context.arc(x, y, 1, 0, 7), context.fill();
    else context.moveTo(x, y), context.lineTo(toX, toY), context.stroke();
  }
  return canvas;
}

/* The colours that the style sheet gives at the moment. */
class Theme {
  constructor() {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(`--${name}`).trim();
    this.font = style.getPropertyValue("--font").trim();
    for (const name of ["ink", "soft", "faint", "line", "paper", "panel", "accent", "alarm", "weave", "edited"])
      this[name] = colour(name);
    this.categories = CATEGORIES.map((name) => colour(name.toLowerCase()));
    this.phases = PHASES.map((name) => colour(`phase-${name}`));
    this.phaseInk = PHASES.map((name) => colour(`phase-${name}-ink`));
    this.patterns = CATEGORIES.map((name) => makeTile(STROKES[name], this.weave));
    this.groups = GROUP_STROKES.map((_, group) =>
      colour(group + 1 < GROUP_STROKES.length ? `group-${group + 1}` : "other"));
    this.groupPatterns = GROUP_STROKES.map((strokes) => makeTile(strokes, this.weave));
    this.hatch = makeTile(STROKES.Gradient, this.soft);
    this.faintHatch = makeTile(STROKES.Gradient, this.faint);
  }

  /* A pattern that has the same size in CSS pixels on every screen. */
  pattern(context, tile) {
    const pattern = context.createPattern(tile, "repeat");
    pattern.setTransform(new DOMMatrix().scale(8 / tile.width));
    return pattern;
  }

  /* Fills the current path, or the rectangle if one is given, with the category's colour and pattern. */
  fillCategory(context, category, rectangle) {
    this.fill(context, this.categories[category], STROKES[CATEGORIES[category]].length ? this.patterns[category] : null,
      rectangle);
  }

  /* The same with a group's colour and pattern. */
  fillGroup(context, group, rectangle) {
    this.fill(context, this.groups[group], GROUP_STROKES[group].length ? this.groupPatterns[group] : null, rectangle);
  }

  /* `tile`: the pattern's, or null. */
  fill(context, colour, tile, rectangle) {
    for (const style of tile ? [colour, this.pattern(context, tile)] : [colour]) {
      context.fillStyle = style;
      if (rectangle) context.fillRect(...rectangle);
      else context.fill();
    }
  }
}

/* The text, cut in the middle if it is wider than `width`. */
function fitText(context, text, width) {
  if (text.length > 200) text = `${text.slice(0, 60)}…${text.slice(-130)}`;
  if (context.measureText(text).width <= width) return text;
  let from = 0, to = text.length - 1;
  const cut = (kept) => `${text.slice(0, Math.floor(kept / 3))}…${text.slice(text.length - Math.ceil((2 * kept) / 3))}`;
  while (from < to) {
    const middle = (from + to + 1) >>> 1;
    if (context.measureText(cut(middle)).width <= width) from = middle;
    else to = middle - 1;
  }
  return from < 3 ? "" : cut(from);
}

/* ---- the distance between the labels of an axis ---- */

/* The smallest power of two of which at most `count` fit into `most` bytes. */
function byteStep(most, count) {
  let step = 1;
  while (most / step > count) step *= 2;
  return step;
}

/* The smallest 1, 2 or 5 times a power of ten that is at least `least`. */
function decimalStep(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map((digit) => digit * power).find((step) => step >= least * 0.999999);
}
