/* text.js - figures, times and names as text. Every function here is pure and says the same as its namesake in Python.
 * */

const CATEGORIES = ["Parameter", "Buffer", "Gradient", "Activation", "Temp", "Optstate", "Other"];
const LETTERS = ["P", "B", "G", "A", "T", "O", "X"];
const PHASES = ["idle", "forward", "recompute", "backward", "optimizer", "evaluation"];
/* The order of a stack from the bottom: long-lived categories first, short-lived ones on top. */
const STACKED = [0, 1, 5, 2, 3, 4, 6];
const COUNT = CATEGORIES.length;
/* Kinds by number, from 1, each with its category. */
const KINDS = [
  null, ["Sharded Param", 0], ["Unsharded Param", 0], ["Sharded Grad", 2], ["Unsharded Grad", 2], ["All Gather", 4],
    ["Reduce Scatter", 4],
  ["Inputs", 6], ["Bucket", 2], ["All Reduce", 4], ["Pipeline Buffer", 3],
];

const UNITS = [["PiB", 2 ** 50], ["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]];
const LONGEST = 4096; /* A name is shown with at most this many characters. */

/* ---- figures ---- */

/* toFixed, but a tie goes to the even digit, as in Python. A double lies exactly halfway between two decimals of
 * `digits` digits only if it is an odd multiple of 2 ** -(digits + 1). */
function fixed(value, digits) {
  const halves = value * 2 ** (digits + 1);
  if (!Number.isInteger(halves) || halves % 2 === 0) return value.toFixed(digits);
  const below = Math.floor(value * 10 ** digits);
  return ((below + Math.abs(below % 2)) / 10 ** digits).toFixed(digits);
}

function size(value) {
  for (const [unit, bytes] of UNITS) if (Math.abs(value) >= bytes) return `${fixed(value / bytes, 2)} ${unit}`;
  return `${value} B`;
}

function change(value) {
  return (value > 0 ? "+" : "") + size(value);
}

/* A size without trailing zeros, for an axis. */
function shortSize(value) {
  for (const [unit, bytes] of UNITS) if (value >= bytes) return `${+(value / bytes).toFixed(2)} ${unit}`;
  return `${value} B`;
}

function percent(part, whole) {
  return whole ? `${fixed((100 * part) / whole, 0)}%` : "0%";
}

function duration(seconds) {
  if (seconds < 1e-3) return `${fixed(1e6 * seconds, 0)} us`;
  if (seconds < 1) return `${fixed(1e3 * seconds, 1)} ms`;
  if (seconds < 100) return `${fixed(seconds, 2)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 100) return `${minutes} min ${fixed(seconds % 60, 0)} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

/* A time on an axis whose labels are `step` apart; both in microseconds. */
function timeLabel(microseconds, step) {
  if (step >= 1e6) return `${Math.round(microseconds / 1e6)} s`;
  const digits = Math.min(Math.max(Math.ceil(-Math.log10(step / 1e6) - 1e-9), 0), 6);
  return `${(microseconds / 1e6).toFixed(digits)} s`;
}

function counted(number, noun) {
  return `${number} ${noun}${number === 1 ? "" : "s"}`;
}

/* ---- names and moments ---- */

/* The same text with an escape for every character that is invisible or changes the direction of the line. Letters of
 * right-to-left scripts are kept: the element that shows them is isolated. */
function clean(text) {
  if (text.length > LONGEST) text = `${text.slice(0, LONGEST / 2)}...${text.slice(-LONGEST / 2)}`;
  return text.replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Cs}]/gu, (char) => {
    const code = char.codePointAt(0).toString(16);
    return code.length <= 2 ? `\\x${code.padStart(2, "0")}` : `\\u${code.padStart(4, "0")}`;
  });
}

/* Cut in the middle, to a few lines at most. The end of a module's name says more than its beginning. */
function shorten(text) {
  return text.length > 180 ? `${text.slice(0, 60)}…${text.slice(-110)}` : text;
}

function label(fqn) {
  return fqn === "Global" ? "Global (outside any module)" : shorten(clean(fqn)) || '""';
}

function doing(phase, module) {
  if (phase === "idle" || phase === "evaluation") return module === "Global" ? "outside any module" : `in ${module}`;
  if (phase === "optimizer") return `in the optimizer's step${module === "Global" ? "" : ` in ${module}`}`;
  return module === "Global" ? `${phase} outside any module` : `${phase} of ${module}`;
}

/* "in step 2, backward of GPT2.h.11.mlp, at 1.531 s" */
function when({ step, phase, module, time }) {
  let first = step ? `in step ${step}` : "before the first step";
  if (phase === "evaluation") first = step ? `in evaluation after step ${step}` : "in evaluation";
  return [first, doing(phase, shorten(clean(module))), `at ${fixed(time, 3)} s`].filter(Boolean).join(", ");
}

/* Compares names so that layers.2 comes before layers.10. */
const compareNames = new Intl.Collator("en", { numeric: true }).compare;
