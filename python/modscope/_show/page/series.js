/* series.js - bytes over time by category, or by other groups: exact at every tick, and quick to draw at every zoom. */

const FRAME = 64; /* changes per frame */

/*  change:    0    1    2   ...  63 | 64   65  ...  127 | 128 ...      one for each tick at which memory changed
 *  tick:      the change's tick          total: bytes after the change
 *  changes:   lifetimes that begin, and complements (~) of those that end; those of change i are
 *             changes[first[i]] .. changes[first[i + 1] - 1]
 *  frames:    bytes by group before each frame's first change
 *  maximum, minimum:  in each frame, the change after which most and least was held */
class Series {
  /* A device's series by category; `mask` limits its templates, or is null. */
  constructor(capture, device, mask) {
    this.capture = capture;
    const lifetimes = Series.choose(capture, device, mask);
    this.collectChanges(lifetimes, Series.sortByEnd(capture, lifetimes));
    this.templateGroup = capture.templateCategory;
    this.groups = COUNT;
    this.addUp();
  }

  /* The same series by the groups of a grouping. */
  by(grouping) {
    if (grouping.by === "category") return this;
    if (this.other?.templateGroup !== grouping.templateGroup) {
      this.other = Object.assign(Object.create(Series.prototype), this,
        { templateGroup: grouping.templateGroup, groups: grouping.count, other: null });
      this.other.addUp();
    }
    return this.other;
  }

  static choose(capture, device, mask) {
    const { template, templateDevice } = capture;
    const wanted = new Uint8Array(templateDevice.length);
    for (let i = 0; i < wanted.length; i++)
      wanted[i] = templateDevice[i] === device && (!mask || mask[i]) ? 1 : 0;
    const lifetimes = new Uint32Array(template.length);
    let count = 0;
    for (let i = 0; i < template.length; i++) if (wanted[template[i]]) lifetimes[count++] = i;
    return lifetimes.subarray(0, count);
  }

  /* The lifetimes that end before the last tick, in the order of their ends (a counting sort). */
  static sortByEnd(capture, lifetimes) {
    const { end, ticks } = capture;
    const offsets = new Uint32Array(ticks + 2);
    for (let i = 0; i < lifetimes.length; i++) offsets[end[lifetimes[i]] + 1]++;
    const unended = offsets[ticks + 1];
    for (let i = 1; i < offsets.length; i++) offsets[i] += offsets[i - 1];
    const sorted = new Uint32Array(lifetimes.length - unended);
    for (let i = 0; i < lifetimes.length; i++)
      if (end[lifetimes[i]] < ticks) sorted[offsets[end[lifetimes[i]]]++] = lifetimes[i];
    return sorted;
  }

  /* Merges begins and ends. Change 0 is at tick 0 even if nothing happened there. */
  collectChanges(begins, ends) {
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
    first[count] = changes.length;
    this.tick = tick.subarray(0, count);
    this.first = first.subarray(0, count + 1);
    this.changes = changes;
    this.count = count;
  }

  addUp() {
    const frames = Math.ceil(this.count / FRAME);
    this.frames = new Float64Array(frames * this.groups);
    this.total = new Float64Array(this.count);
    this.maximum = new Uint32Array(frames);
    this.minimum = new Uint32Array(frames);
    this.everHeld = new Uint8Array(this.groups);
    const sums = new Float64Array(this.groups);
    let total = 0;
    for (let frame = 0; frame < frames; frame++) {
      const begin = frame * FRAME, end = Math.min(begin + FRAME, this.count);
      this.frames.set(sums, frame * this.groups);
      let maximum = begin, minimum = begin;
      for (let i = begin; i < end; i++) {
        total += this.apply(i, sums);
        this.total[i] = total;
        if (total > this.total[maximum]) maximum = i;
        if (total < this.total[minimum]) minimum = i;
      }
      this.maximum[frame] = maximum;
      this.minimum[frame] = minimum;
    }
    this.peak = this.maximumIn(0, this.count - 1);
  }

  /* Applies change `i` to the sums, and returns by how much the total grows. */
  apply(i, sums) {
    const { templateGroup } = this, { template, templateBytes } = this.capture;
    let growth = 0;
    for (let at = this.first[i]; at < this.first[i + 1]; at++) {
      const change = this.changes[at];
      const of = template[change < 0 ? ~change : change];
      const bytes = change < 0 ? -templateBytes[of] : templateBytes[of];
      sums[templateGroup[of]] += bytes;
      this.everHeld[templateGroup[of]] |= bytes > 0 ? 1 : 0;
      growth += bytes;
    }
    return growth;
  }

  /* The last change at or before this tick. */
  changeAt(tick) {
    return lastIndexUpTo(this.tick, tick);
  }

  totalAt(tick) {
    return this.total[this.changeAt(tick)];
  }

  get peakTick() {
    return this.tick[this.peak];
  }

  get peakTotal() {
    return this.total[this.peak];
  }

  /* Bytes by group after change `i`, written into `sums`. */
  sumsAfter(i, sums = new Float64Array(this.groups)) {
    const frame = Math.floor(i / FRAME);
    for (let group = 0; group < this.groups; group++) sums[group] = this.frames[frame * this.groups + group];
    for (let change = frame * FRAME; change <= i; change++) this.apply(change, sums);
    return sums;
  }

  /* The first of the changes from..to after which most was held. */
  maximumIn(from, to) {
    return this.searchFrames(from, to, this.maximum, (a, b) => a > b);
  }

  minimumIn(from, to) {
    return this.searchFrames(from, to, this.minimum, (a, b) => a < b);
  }

  searchFrames(from, to, bestOfFrame, isBetter) {
    const { total } = this;
    let best = from;
    for (let i = from; i <= to; ) {
      const isWholeFrame = i % FRAME === 0 && i + FRAME - 1 <= to;
      const candidate = isWholeFrame ? bestOfFrame[i / FRAME] : i;
      if (isBetter(total[candidate], total[best])) best = candidate;
      i += isWholeFrame ? FRAME : 1;
    }
    return best;
  }
}
