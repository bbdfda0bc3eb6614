/* series.js - what is held over time, by category: exact at every tick, quick to draw at every zoom. */

const FRAME = 64; /* changes between two that are known by heart */

/* Changes in the order of their ticks, those at one tick together. Before each FRAMEth the sums of all categories are kept, and
 * of each FRAME where it held most and least. */
class Series {
  constructor(capture, device, within) {
    this.capture = capture;
    const stays = Series.choose(capture, device, within);
    this.collect(stays, Series.byEnd(capture, stays));
    this.sum();
  }

  static choose(capture, device, within) {
    const { kind, kindDevice, modules } = capture;
    const wanted = new Uint8Array(kindDevice.length);
    for (let i = 0; i < wanted.length; i++)
      wanted[i] = kindDevice[i] === device && (!within || within[modules.kindNode[i]]) ? 1 : 0;
    const stays = new Uint32Array(kind.length);
    let count = 0;
    for (let i = 0; i < kind.length; i++) if (wanted[kind[i]]) stays[count++] = i;
    return stays.subarray(0, count);
  }

  /* The stays that end before the last tick, by growing end. */
  static byEnd(capture, stays) {
    const { end, ticks } = capture;
    const places = new Uint32Array(ticks + 2);
    for (let i = 0; i < stays.length; i++) places[end[stays[i]] + 1]++;
    const still = places[ticks + 1];
    for (let i = 1; i < places.length; i++) places[i] += places[i - 1];
    const sorted = new Uint32Array(stays.length - still);
    for (let i = 0; i < stays.length; i++) if (end[stays[i]] < ticks) sorted[places[end[stays[i]]]++] = stays[i];
    return sorted;
  }

  /* this.tick: the ticks with changes, tick 0 in any case. this.first: where in this.changes those of each begin; a
   * stay that ends is written as its complement. */
  collect(begins, ends) {
    const { begin, end } = this.capture;
    const most = begins.length + ends.length + 1;
    const tick = new Uint32Array(most), first = new Uint32Array(most + 1), changes = new Int32Array(most - 1);
    let count = 1, b = 0, e = 0;
    for (let at = 0; at < changes.length; at++) {
      const ending = e < ends.length && (b === begins.length || end[ends[e]] <= begin[begins[b]]);
      const now = ending ? end[ends[e]] : begin[begins[b]];
      if (now !== tick[count - 1]) {
        tick[count] = now;
        first[count++] = at;
      }
      changes[at] = ending ? ~ends[e++] : begins[b++];
    }
    const at = changes.length;
    first[count] = at;
    this.tick = tick.subarray(0, count);
    this.first = first.subarray(0, count + 1);
    this.changes = changes;
    this.count = count;
  }

  sum() {
    const frames = Math.ceil(this.count / FRAME);
    this.frames = new Float64Array(frames * COUNT);
    this.total = new Float64Array(this.count);
    this.most = new Uint32Array(frames);
    this.least = new Uint32Array(frames);
    this.ever = new Uint8Array(COUNT); /* whether a category was ever held */
    const sums = new Float64Array(COUNT);
    let total = 0;
    for (let frame = 0; frame < frames; frame++) {
      const begin = frame * FRAME, end = Math.min(begin + FRAME, this.count);
      this.frames.set(sums, frame * COUNT);
      let most = begin, least = begin;
      for (let i = begin; i < end; i++) {
        total += this.apply(i, sums);
        this.total[i] = total;
        if (total > this.total[most]) most = i;
        if (total < this.total[least]) least = i;
      }
      this.most[frame] = most;
      this.least[frame] = least;
    }
    this.peak = this.argmost(0, this.count - 1);
  }

  /* What change `i` does to the sums; returns by how much the total grows. */
  apply(i, sums) {
    const { kind, kindBytes, kindCategory } = this.capture;
    let grown = 0;
    for (let at = this.first[i]; at < this.first[i + 1]; at++) {
      const change = this.changes[at];
      const of = kind[change < 0 ? ~change : change];
      const bytes = change < 0 ? -kindBytes[of] : kindBytes[of];
      sums[kindCategory[of]] += bytes;
      this.ever[kindCategory[of]] |= bytes > 0 ? 1 : 0;
      grown += bytes;
    }
    return grown;
  }

  /* The last change at or before this tick. */
  at(tick) {
    return lastAt(this.tick, tick);
  }

  /* Bytes by category after change `i`, into `sums`. */
  sums(i, sums = new Float64Array(COUNT)) {
    const frame = Math.floor(i / FRAME);
    for (let c = 0; c < COUNT; c++) sums[c] = this.frames[frame * COUNT + c];
    for (let change = frame * FRAME; change <= i; change++) this.apply(change, sums);
    return sums;
  }

  /* Which of the changes from..to leaves most; the first one of several. */
  argmost(from, to) {
    return this.search(from, to, this.most, (a, b) => a > b);
  }

  argleast(from, to) {
    return this.search(from, to, this.least, (a, b) => a < b);
  }

  search(from, to, known, better) {
    const { total } = this;
    let best = from;
    for (let i = from; i <= to; ) {
      const whole = i % FRAME === 0 && i + FRAME - 1 <= to;
      const candidate = whole ? known[i / FRAME] : i;
      if (better(total[candidate], total[best])) best = candidate;
      i += whole ? FRAME : 1;
    }
    return best;
  }
}
