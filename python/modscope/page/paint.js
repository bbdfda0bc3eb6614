/* paint.js - what the canvases share: sizes, colours of the theme, and patterns that tell categories apart without
 * colour. */

/* Fit the canvas to its box; its context, in CSS pixels. */
function prepare(canvas) {
  const { width, height } = canvas.getBoundingClientRect();
  const scale = window.devicePixelRatio || 1;
  const wide = Math.max(Math.round(width * scale), 1), high = Math.max(Math.round(height * scale), 1);
  if (canvas.width !== wide) canvas.width = wide;
  if (canvas.height !== high) canvas.height = high;
  const context = canvas.getContext("2d");
  context.setTransform(wide / (width || 1), 0, 0, high / (height || 1), 0, 0);
  context.clearRect(0, 0, width, height);
  return { context, width, height };
}

/* Lines and dots of 8 x 8 pixels; Parameter and Activation, the most frequent neighbours, are plain and sloped. */
const STROKES = {
  Parameter: [],
  Buffer: [["dot", 2, 2], ["dot", 6, 6]],
  Gradient: [["line", 0, 8, 8, 0], ["line", -1, 1, 1, -1], ["line", 7, 9, 9, 7]],
  Activation: [["line", 0, 0, 8, 8], ["line", -1, 7, 1, 9], ["line", 7, -1, 9, 1]],
  Temp: [["line", 0, 2, 8, 2], ["line", 0, 6, 8, 6]],
  Optstate: [["line", 2, 0, 2, 8], ["line", 6, 0, 6, 8]],
  Other: [["line", 0, 4, 8, 4], ["line", 4, 0, 4, 8]],
};

function tile(strokes, colour) {
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

/* The colours that the style sheet says now. */
class Theme {
  constructor() {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(`--${name}`).trim();
    this.font = style.getPropertyValue("--font").trim();
    for (const name of ["ink", "soft", "faint", "line", "paper", "panel", "accent", "alarm", "weave"])
      this[name] = colour(name);
    this.categories = CATEGORIES.map((word) => colour(word.toLowerCase()));
    this.phases = PHASES.map((word) => colour(`phase-${word}`));
    this.phaseInk = PHASES.map((word) => colour(`phase-${word}-ink`));
    this.patterns = CATEGORIES.map((word) => tile(STROKES[word], this.weave));
    this.hatch = tile(STROKES.Gradient, this.soft);
  }

  /* A pattern in CSS pixels, whatever the screen's. */
  pattern(context, canvas) {
    const pattern = context.createPattern(canvas, "repeat");
    pattern.setTransform(new DOMMatrix().scale(8 / canvas.width));
    return pattern;
  }

  /* Fill the current path, or this rectangle, as the category is. */
  fill(context, category, rectangle) {
    for (const style of [this.categories[category], this.pattern(context, this.patterns[category])]) {
      context.fillStyle = style;
      if (rectangle) context.fillRect(...rectangle);
      else context.fill();
      if (!STROKES[CATEGORIES[category]].length) return;
    }
  }
}

/* Text cut in the middle so that it is no wider. */
function fit(context, text, width) {
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

/* ---- scales ---- */

/* Round steps of bytes, so that there are at most so many. */
function byteSteps(most, count) {
  let step = 1;
  while (most / step > count) step *= 2;
  return step;
}

/* 1, 2 or 5 times a power of ten. */
function roundStep(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map((digit) => digit * power).find((step) => step >= least * 0.999999);
}

function shortSize(value) {
  for (const [word, unit] of UNITS) if (value >= unit) return `${+(value / unit).toFixed(2)} ${word}`;
  return `${value} B`;
}

function timeLabel(microseconds, step) {
  if (step >= 1e6) return `${Math.round(microseconds / 1e6)} s`;
  const digits = Math.min(Math.max(Math.ceil(-Math.log10(step / 1e6) - 1e-9), 0), 6);
  return `${(microseconds / 1e6).toFixed(digits)} s`;
}
