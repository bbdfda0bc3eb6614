/* capture.js - one capture of the page: its metadata, and its pack in typed arrays. The columns of a pack are
   described in
 * include/modscope_capture.h. */

/* How many varints lie in bytes[from..to). */
function countNumbers(bytes, from, to) {
  let count = 0;
  for (let at = from; at < to; at++) count += bytes[at] < 128;
  return count;
}

/* Decodes the varints in bytes[from..to) into `out`. In a delta-encoded column each number is the difference to the one
 * before it. */
function readNumbers(bytes, from, to, out, isDelta) {
  let sum = 0;
  for (let at = from, n = 0; at < to; n++) {
    let byte = bytes[at++], value = byte & 127;
    for (let scale = 128; byte > 127; scale *= 128) {
      byte = bytes[at++];
      value += (byte & 127) * scale;
    }
    out[n] = isDelta ? (sum += value) : value;
  }
  return out;
}

/* Reads the columns of a pack one after the other. */
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

  /* The next column, as a typed array. */
  next(Type, isDelta = false) {
    const length = this.number();
    const from = this.at;
    this.at += length;
    return readNumbers(this.bytes, from, this.at, new Type(countNumbers(this.bytes, from, this.at)), isDelta);
  }

  /* The next column, as rows of `width` numbers; the first number of each row is delta-encoded. */
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

/* The index of the last element of a sorted array that is not greater than `value`, or -1. */
function lastIndexUpTo(array, value) {
  let from = 0, to = array.length;
  while (from < to) {
    const middle = (from + to) >>> 1;
    if (array[middle] <= value) from = middle + 1;
    else to = middle;
  }
  return from - 1;
}

function decodeBase64(base64) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(base64);
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes;
}

/* The bytes that were deflated and encoded as base64. */
async function inflate(base64) {
  const stream = new Blob([decodeBase64(base64)]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/* A block lifetime is a number here, its index in `begin`, `end` and `template`; it is held at the ticks from begin to
 * end - 1. A template is an index in the template... arrays. */
class Capture {
  /* `bytes`: the length of the metadata, the metadata as JSON, the pack. */
  constructor(bytes) {
    const columns = new Columns(bytes);
    const length = columns.number();
    this.metadata = JSON.parse(new TextDecoder().decode(bytes.subarray(columns.at, columns.at + length)));
    columns.at += length;
    this.readColumns(columns);
    this.modules = new Modules(this);
    this.seriesByKey = new Map();
    this.keysBy = {};
  }

  readColumns(columns) {
    this.time = columns.next(Float64Array, true);
    this.ticks = this.time.length;
    const jumps = columns.rows(2);
    this.jumpTicks = jumps.map((row) => row[0]);
    this.jumpMoments = jumps.map((row) => row[1]);
    this.readLifetimes(columns);
    this.templateBytes = columns.next(Float64Array);
    this.readAttributes(columns.next(Uint16Array));
    this.templateDevice = columns.next(Uint8Array);
    this.templatePath = columns.next(Uint32Array);
    this.readStacks(columns.next(Uint32Array));
    this.previous = new Map(columns.rows(2));
    this.age = new Map(columns.rows(3).map(([lifetime, steps, microseconds]) => [lifetime, { steps, microseconds }]));
    this.runningTicks = columns.next(Uint32Array, true);
    this.runningPhase = columns.next(Uint8Array);
    this.runningPath = columns.next(Uint32Array);
    const steps = columns.rows(2);
    this.stepTicks = steps.map((row) => row[0]);
    this.stepNumbers = steps.map((row) => row[1]);
    this.readReserved(columns.rows(3));
    this.ooms = columns.rows(7).map(([tick, device, requested, allocated, reserved, phase, path]) => {
      return { tick, device, requested, allocated, reserved, phase: PHASES[phase], module: this.fqnOfPath(path) };
    });
  }

  readLifetimes(columns) {
    this.begin = columns.next(Uint32Array, true);
    this.end = columns.next(Uint32Array);
    for (let i = 0; i < this.end.length; i++) this.end[i] = this.end[i] ? this.begin[i] + this.end[i] : this.ticks;
    this.template = columns.next(Uint32Array);
    for (let i = 0, next = 0; i < this.template.length; i++)
      this.template[i] = this.template[i] ? next - this.template[i] : next++;
  }

  readAttributes(attributes) {
    for (const name of ["templateCategory", "templateOutside", "templatePhase", "templateKind"])
      this[name] = new Uint8Array(attributes.length);
    for (let i = 0; i < attributes.length; i++) {
      this.templateCategory[i] = attributes[i] & 7;
      this.templateOutside[i] = (attributes[i] >> 3) & 1;
      this.templatePhase[i] = (attributes[i] >> 4) & 15;
      this.templateKind[i] = attributes[i] >> 8;
    }
  }

  /* The column is empty if no stack is known. */
  readStacks(column) {
    this.templateStack = column.length ? column : new Uint32Array(this.templateBytes.length);
    this.stacks = new Stacks(this.metadata.stacks ?? null);
  }

  /* Whether some block has a kind. */
  get hasKinds() {
    return (this.anyKind ??= this.templateKind.some((kind) => kind > 0));
  }

  readReserved(rows) {
    this.reserved = this.metadata.devices.map(() => ({ ticks: [0], bytes: [0] }));
    for (const [tick, device, bytes] of rows) {
      this.reserved[device]?.ticks.push(tick);
      this.reserved[device]?.bytes.push(bytes);
    }
  }

  fqnOfPath(path) {
    return this.metadata.names[this.metadata.paths[path]] ?? "?";
  }

  /* ---- ticks and moments ---- */
  momentOf(tick) {
    const jump = lastIndexUpTo(this.jumpTicks, tick);
    return this.jumpMoments[jump] + tick - this.jumpTicks[jump];
  }

  /* The last tick at or before this moment, or the first tick. */
  tickOf(moment) {
    const jump = Math.max(lastIndexUpTo(this.jumpMoments, moment), 0);
    const next = jump + 1 < this.jumpTicks.length ? this.jumpTicks[jump + 1] : this.ticks;
    return Math.min(Math.max(this.jumpTicks[jump] + moment - this.jumpMoments[jump], 0), next - 1);
  }

  tickAtTime(microseconds) {
    return Math.max(lastIndexUpTo(this.time, microseconds), 0);
  }

  /* Whether events up to this tick were lost or damaged, so that figures are "at least". */
  isLowerBound(tick) {
    const { is_lower_bound_at_first, lost_at_end } = this.metadata;
    return is_lower_bound_at_first || (this.jumpTicks.length > 1 && tick >= this.jumpTicks[1])
      || (lost_at_end && tick >= this.ticks - 1);
  }

  /* ---- the state at a tick ---- */
  stepAt(tick) {
    return this.stepNumbers[lastIndexUpTo(this.stepTicks, tick)] ?? 0;
  }

  /* The first step that begins after tick 0, and how long after it, or null. */
  get firstStep() {
    const i = this.stepNumbers.findIndex((number) => number > 0);
    const tick = this.stepTicks[i];
    return tick > 0 ? { tick, number: this.stepNumbers[i], seconds: (this.time[tick] - this.time[0]) / 1e6 } : null;
  }

  reservedAt(tick, device) {
    const { ticks, bytes } = this.reserved[device];
    return bytes[lastIndexUpTo(ticks, tick)];
  }

  /* What was running: the argument of when(). */
  positionAt(tick) {
    const running = lastIndexUpTo(this.runningTicks, tick);
    return {
      step: this.stepAt(tick),
      phase: PHASES[this.runningPhase[running]] ?? "idle",
      module: this.fqnOfPath(this.runningPath[running]),
      time: this.time[tick] / 1e6,
    };
  }

  /* ---- blocks ---- */

  /* The step and the time in which a lifetime's block was allocated. */
  allocationOf(lifetime) {
    while (this.previous.has(lifetime)) lifetime -= this.previous.get(lifetime);
    const tick = this.begin[lifetime];
    const age = this.age.get(lifetime) ?? { steps: 0, microseconds: 0 };
    return { step: this.stepAt(tick) - age.steps, time: (this.time[tick] - age.microseconds) / 1e6 };
  }

  /* Bytes by the names of kinds, at a tick; of all modules (-1), or of one without its children. */
  kindsAt(tick, device, module = -1) {
    const bytes = {};
    if (!this.hasKinds) return bytes;
    this.eachHeld(tick, device, (lifetime) => {
      const template = this.template[lifetime], kind = KINDS[this.templateKind[template]];
      if (kind && (module < 0 || this.modules.templateModule[template] === module))
        bytes[kind[0]] = (bytes[kind[0]] ?? 0) + this.templateBytes[template];
    });
    return bytes;
  }

  /* Calls `call` with each lifetime that is held at the tick on the device. */
  eachHeld(tick, device, call) {
    const { begin, end, template, templateDevice } = this;
    for (let lifetime = 0; lifetime < begin.length && begin[lifetime] <= tick; lifetime++)
      if (end[lifetime] > tick && templateDevice[template[lifetime]] === device) call(lifetime);
  }

  /* The keys of all templates: "module", "operator", "line" or "category". */
  keys(by) {
    return (this.keysBy[by] ??= new Keys(this, by));
  }

  /* 1 for each template that belongs to a module's subtree, or to a group {by, key}; null if neither is given (-1,
     null). */
  templateMask(module, group) {
    if (module >= 0) {
      const mask = this.modules.subtreeMask(module);
      return Uint8Array.from(this.modules.templateModule, (each) => mask[each]);
    }
    if (!group) return null;
    const { templateKey, numbers } = this.keys(group.by), wanted = numbers.get(group.key);
    return Uint8Array.from(templateKey, (key) => (key === wanted ? 1 : 0));
  }

  /* The `most` largest blocks of a device, oldest first among equals. `mask` limits their templates, or is null.
     `together`:
   * equal blocks of modules that differ only in numbers are one row. */
  largestBlocks(tick, device, most, mask, together = false) {
    const { template, templateBytes } = this;
    const found = [];
    this.eachHeld(tick, device, (lifetime) => {
      if (!mask || mask[template[lifetime]]) found.push(lifetime);
    });
    const bytesOf = (lifetime) => templateBytes[template[lifetime]];
    let least = 0;
    if (found.length > 4 * most) {
      const sizes = Float64Array.from(found, bytesOf).sort();
      least = sizes[sizes.length - most];
    }
    if (together) return this.foldBlocks(found, most);
    const rows = found.filter((lifetime) => bytesOf(lifetime) >= least)
      .map((lifetime) => ({ lifetime, bytes: bytesOf(lifetime), allocation: this.allocationOf(lifetime) }));
    rows.sort((a, b) => b.bytes - a.bytes || a.allocation.time - b.allocation.time || a.lifetime - b.lifetime);
    return { rows: rows.slice(0, most), count: found.length };
  }

  /* A number for each template; equal ones in modules that differ only in numbers share it. */
  get templateAlike() {
    if (this.alikeTemplates) return this.alikeTemplates;
    const numbers = new Map(), patterns = this.modules.fqn.map(mergeNumbers);
    return (this.alikeTemplates = Uint32Array.from(this.templateBytes, (bytes, i) => {
      const key = [bytes, this.templateCategory[i], this.templateKind[i], this.templatePhase[i],
        this.templateOutside[i], this.templateStack[i], patterns[this.modules.templateModule[i]]].join();
      if (!numbers.has(key)) numbers.set(key, numbers.size);
      return numbers.get(key);
    }));
  }

  /* Rows of equal blocks, those with most bytes first: {lifetime, bytes (of each), allocation (of the first), count,
     lastStep,
   * modules}. */
  foldBlocks(lifetimes, most) {
    const alike = this.templateAlike, rows = new Map();
    for (const lifetime of lifetimes) {
      const template = this.template[lifetime], key = alike[template];
      const row = rows.get(key);
      if (!row) rows.set(key,
        { lifetime, bytes: this.templateBytes[template], count: 1, last: lifetime, modules: new Set([template]) });
      else row.count++, row.last = lifetime, row.modules.add(template);
    }
    const sorted = [...rows.values()].sort((a, b) => b.bytes * b.count - a.bytes * a.count || a.lifetime - b.lifetime);
    const shown = sorted.slice(0, most).map((row) => {
      const modules = new Set([...row.modules].map((template) => this.modules.templateModule[template]));
      return { ...row, modules, allocation: this.allocationOf(row.lifetime),
        lastStep: this.allocationOf(row.last).step };
    });
    return { rows: shown, count: sorted.length };
  }

  /* ---- over time ---- */

  /* What a device held over time, or the part of it in one module's subtree or in a group. */
  series(device, module = -1, group = null) {
    const key = JSON.stringify([device, module, group]);
    let series = this.seriesByKey.get(key);
    if (!series) {
      if (this.seriesByKey.size > 8) this.seriesByKey.clear();
      series = new Series(this, device, this.templateMask(module, group));
      this.seriesByKey.set(key, series);
    }
    return series;
  }
}
