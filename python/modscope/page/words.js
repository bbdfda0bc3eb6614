/* words.js - figures and moments in words: the same as the terminal's (_commands/terminal.py, common.py). */

const CATEGORIES = ["Parameter", "Buffer", "Gradient", "Activation", "Temp", "Optstate", "Other"];
const LETTERS = ["P", "B", "G", "A", "T", "O", "X"];
const PHASES = ["idle", "forward", "recompute", "backward", "optimizer"];
/* From the bottom of a stack: what stays first, what comes and goes above it. */
const STACKED = [0, 1, 5, 2, 3, 4, 6];
const COUNT = CATEGORIES.length;

const UNITS = [["PiB", 2 ** 50], ["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]];
const LONGEST = 4096; /* characters of a name that are shown */

/* value / unit with two digits; like Python's, a tie goes to the even digit. */
function hundredths(value, unit) {
  const exact = value * 100;
  if (!Number.isSafeInteger(exact)) return (value / unit).toFixed(2);
  let whole = Math.floor(exact / unit);
  const rest = 2 * (exact - whole * unit);
  if (rest > unit || (rest === unit && whole % 2)) whole++;
  return `${Math.floor(whole / 100)}.${String(whole % 100).padStart(2, "0")}`;
}

function size(value) {
  const amount = Math.abs(value);
  const sign = value < 0 ? "-" : "";
  for (const [word, unit] of UNITS) if (amount >= unit) return `${sign}${hundredths(amount, unit)} ${word}`;
  return `${value} B`;
}

function change(value) {
  return (value > 0 ? "+" : "") + size(value);
}

function percent(part, whole) {
  if (!whole) return "0%";
  const exact = (100 * part) / whole;
  const below = Math.floor(exact);
  return `${exact - below === 0.5 ? below + (below % 2) : Math.round(exact)}%`;
}

function duration(seconds) {
  if (seconds < 1e-3) return `${Math.round(1e6 * seconds)} us`;
  if (seconds < 1) return `${(1e3 * seconds).toFixed(1)} ms`;
  if (seconds < 100) return `${seconds.toFixed(2)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 100) return `${minutes} min ${Math.round(seconds % 60)} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

function counted(number, word) {
  return `${number.toLocaleString("en")} ${word}${number === 1 ? "" : "s"}`;
}

function label(fqn) {
  return fqn === "Global" ? "Global (outside any module)" : short(clean(fqn)) || '""';
}

/* No longer than a few lines. The end tells more of a module than the beginning. */
function short(text) {
  return text.length > 180 ? `${text.slice(0, 60)}…${text.slice(-110)}` : text;
}

function doing(phase, module) {
  if (phase === "idle") return module === "Global" ? "outside any module" : `in ${module}`;
  if (phase === "optimizer") return `in the optimizer's step${module === "Global" ? "" : ` in ${module}`}`;
  return module === "Global" ? `${phase} outside any module` : `${phase} of ${module}`;
}

/* "in step 2, backward of GPT2.h.11.mlp, at 1.531 s" */
function when(spot) {
  const step = spot.step ? `in step ${spot.step}` : "before the first step";
  return [step, doing(spot.phase, short(clean(spot.module))), `at ${spot.time.toFixed(3)} s`].filter(Boolean).join(", ");
}

/* The same text, with an escape for what cannot be seen or would turn the line around. Letters that are written from
 * the right stay: what shows them is isolated. */
function clean(text) {
  if (text.length > LONGEST) text = `${text.slice(0, LONGEST / 2)}...${text.slice(-LONGEST / 2)}`;
  return text.replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Cs}]/gu, (char) => {
    const code = char.codePointAt(0).toString(16);
    return code.length <= 2 ? `\\x${code.padStart(2, "0")}` : `\\u${code.padStart(4, "0")}`;
  });
}

/* Names as people sort them: layers.2 before layers.10. */
const natural = new Intl.Collator("en", { numeric: true }).compare;

/* ---- elements ---- */
function find(id) {
  return document.getElementById(id);
}

/* An element with a class and text, or children. Text is text, whatever is in it. */
function make(tag, className, ...inside) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.append(...inside);
  return element;
}

/* A name that somebody else chose: isolated from the text around it. */
function bdi(text, className) {
  return make("bdi", className, text);
}

function swatch(category) {
  const mark = make("span", "swatch", LETTERS[category]);
  mark.dataset.category = CATEGORIES[category];
  mark.setAttribute("aria-hidden", "true");
  return mark;
}
