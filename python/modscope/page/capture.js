/* capture.js - a capture as it lies in the page, in typed arrays. What its columns are is told in
 * include/modscope_capture.h, "a pack". */

/* How many numbers there are in bytes from..to. */
function countNumbers(bytes, from, to) {
  let count = 0;
  for (let at = from; at < to; at++) count += bytes[at] < 128;
  return count;
}

/* The column's numbers into `out`; with `on`, each is by how much it is more than the one before. */
function readNumbers(bytes, from, to, out, on) {
  let sum = 0;
  for (let at = from, n = 0; at < to; n++) {
    let byte = bytes[at++], value = byte & 127;
    for (let scale = 128; byte > 127; scale *= 128) {
      byte = bytes[at++];
      value += (byte & 127) * scale;
    }
    out[n] = on ? (sum += value) : value;
  }
  return out;
}

class Columns {
  constructor(bytes) {
    this.bytes = bytes;
    this.at = 0;
  }

  number() {
    let value = 0;
    for (let scale = 1; ; scale *= 128) {
      const byte = this.bytes[this.at++];
      value += (byte & 127) * scale;
      if (byte < 128) return value;
    }
  }

  /* The next column, as an array of this type. */
  next(Type, on = false) {
    const size = this.number();
    const from = this.at;
    this.at += size;
    return readNumbers(this.bytes, from, this.at, new Type(countNumbers(this.bytes, from, this.at)), on);
  }

  /* A column of rows of `width` numbers, the first of each on. */
  rows(width) {
    const flat = this.next(Float64Array);
    const rows = [];
    for (let at = 0, first = 0; at < flat.length; at += width) {
      first += flat[at];
      rows.push([first, ...flat.subarray(at + 1, at + width)]);
    }
    return rows;
  }
}

/* The index of the last in a sorted array that is not above `value`; -1 if there is none. */
function lastAt(array, value) {
  let from = 0, to = array.length;
  while (from < to) {
    const middle = (from + to) >>> 1;
    if (array[middle] <= value) from = middle + 1;
    else to = middle;
  }
  return from - 1;
}

function bytesOf(base64) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(base64);
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes;
}

/* Bytes of deflated base64, as they were. */
async function inflate(text) {
  const packed = bytesOf(text);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

class Capture {
  /* `bytes`: how long the words are, the words as JSON, the pack. */
  constructor(bytes) {
    const columns = new Columns(bytes);
    const length = columns.number();
    this.words = JSON.parse(new TextDecoder().decode(bytes.subarray(columns.at, columns.at + length)));
    columns.at += length;
    this.readColumns(columns);
    this.modules = new Modules(this);
    this.seriesOf = new Map();
  }

  readColumns(columns) {
    this.time = columns.next(Float64Array, true);
    this.ticks = this.time.length;
    const jumps = columns.rows(2);
    this.jumpTicks = jumps.map((row) => row[0]);
    this.jumpMoments = jumps.map((row) => row[1]);
    this.begin = columns.next(Uint32Array, true);
    this.end = columns.next(Uint32Array);
    for (let i = 0; i < this.end.length; i++) this.end[i] = this.end[i] ? this.begin[i] + this.end[i] : this.ticks;
    this.kind = columns.next(Uint32Array);
    for (let i = 0, next = 0; i < this.kind.length; i++) this.kind[i] = this.kind[i] ? next - this.kind[i] : next++;
    this.kindBytes = columns.next(Float64Array);
    this.readKinds(columns.next(Uint8Array));
    this.kindDevice = columns.next(Uint8Array);
    this.kindPath = columns.next(Uint32Array);
    this.again = new Map(columns.rows(2));
    this.old = new Map(columns.rows(3).map(([stay, steps, ago]) => [stay, { steps, ago }]));
    this.runTicks = columns.next(Uint32Array, true);
    this.runPhase = columns.next(Uint8Array);
    this.runPath = columns.next(Uint32Array);
    const steps = columns.rows(2);
    this.stepTicks = steps.map((row) => row[0]);
    this.stepNumbers = steps.map((row) => row[1]);
    this.reserved = this.words.devices.map(() => ({ ticks: [0], bytes: [0] }));
    for (const [tick, device, bytes] of columns.rows(3)) {
      this.reserved[device]?.ticks.push(tick);
      this.reserved[device]?.bytes.push(bytes);
    }
    this.ooms = columns.rows(7).map(([tick, device, requested, allocated, reserved, phase, path]) => {
      return { tick, device, requested, allocated, reserved, phase: PHASES[phase], module: this.moduleOf(path) };
    });
  }

  readKinds(what) {
    for (const word of ["kindCategory", "kindOutside", "kindPhase"]) this[word] = new Uint8Array(what.length);
    for (let i = 0; i < what.length; i++) {
      this.kindCategory[i] = what[i] & 7;
      this.kindOutside[i] = (what[i] >> 3) & 1;
      this.kindPhase[i] = what[i] >> 4;
    }
  }

  moduleOf(path) {
    return this.words.names[this.words.paths[path]] ?? "?";
  }

  /* ---- ticks and moments ---- */
  momentOf(tick) {
    const jump = lastAt(this.jumpTicks, tick);
    return this.jumpMoments[jump] + tick - this.jumpTicks[jump];
  }

  /* The last tick at this moment or before it, or the first. */
  tickOf(moment) {
    const jump = Math.max(lastAt(this.jumpMoments, moment), 0);
    const next = jump + 1 < this.jumpTicks.length ? this.jumpTicks[jump + 1] : this.ticks;
    return Math.min(Math.max(this.jumpTicks[jump] + moment - this.jumpMoments[jump], 0), next - 1);
  }

  tickAtTime(microseconds) {
    return Math.max(lastAt(this.time, microseconds), 0);
  }

  /* Whether something before was lost or damaged: figures are then "at least". */
  isLowerBound(tick) {
    return this.words.is_lower_bound_at_first || (this.jumpTicks.length > 1 && tick >= this.jumpTicks[1]);
  }

  /* ---- what was so at a tick ---- */
  stepAt(tick) {
    return this.stepNumbers[lastAt(this.stepTicks, tick)] ?? 0;
  }

  reservedAt(tick, device) {
    const { ticks, bytes } = this.reserved[device];
    return bytes[lastAt(ticks, tick)];
  }

  spotAt(tick) {
    const run = lastAt(this.runTicks, tick);
    return {
      step: this.stepAt(tick),
      phase: PHASES[this.runPhase[run]] ?? "idle",
      module: this.moduleOf(this.runPath[run]),
      time: this.time[tick] / 1e6,
    };
  }

  /* ---- blocks ---- */

  /* The step it was made in, and when. */
  birthOf(stay) {
    while (this.again.has(stay)) stay -= this.again.get(stay);
    const tick = this.begin[stay];
    const old = this.old.get(stay) ?? { steps: 0, ago: 0 };
    return { step: this.stepAt(tick) - old.steps, time: (this.time[tick] - old.ago) / 1e6 };
  }

  /* Call with each stay that is held at the tick on the device. */
  eachHeld(tick, device, call) {
    const { begin, end, kind, kindDevice } = this;
    for (let stay = 0; stay < begin.length && begin[stay] <= tick; stay++)
      if (end[stay] > tick && kindDevice[kind[stay]] === device) call(stay);
  }

  /* The largest blocks of a device and, if it is told, a module with all below it. The oldest first among equals. */
  largest(tick, device, most, within) {
    const { kind, kindBytes } = this;
    const found = [];
    this.eachHeld(tick, device, (stay) => {
      if (!within || within[this.modules.kindNode[kind[stay]]]) found.push(stay);
    });
    const bytes = (stay) => kindBytes[kind[stay]];
    let least = 0;
    if (found.length > 4 * most) {
      const sizes = Float64Array.from(found, bytes).sort();
      least = sizes[sizes.length - most];
    }
    const rows = found.filter((stay) => bytes(stay) >= least).map((stay) => ({ stay, bytes: bytes(stay) }));
    for (const row of rows) row.birth = this.birthOf(row.stay);
    rows.sort((a, b) => b.bytes - a.bytes || a.birth.time - b.birth.time || a.stay - b.stay);
    return { rows: rows.slice(0, most), count: found.length };
  }

  /* ---- over time ---- */

  /* What a device holds over time, or of it a module with all below it. */
  series(device, node = -1) {
    const key = `${device}/${node}`;
    let series = this.seriesOf.get(key);
    if (!series) {
      if (this.seriesOf.size > 8) this.seriesOf.clear();
      const within = node < 0 ? null : this.modules.within(node);
      series = new Series(this, device, within);
      this.seriesOf.set(key, series);
    }
    return series;
  }
}
