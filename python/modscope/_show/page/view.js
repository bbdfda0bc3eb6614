/* view.js - which part of a run is shown, and the conversion between pixels and ticks.
 *
 * A *coordinate* is a position on the horizontal axis: microseconds since the capture began, or ticks.
 *
 *   |<------------------ whole() ------------------>|
 *   |  before step 1   |<-------- domain() -------->|    while the part before step 1 is folded; else domain() is
 * whole()
 *                           |<- range() ->|              zoomed in; else range() is domain() */

const LEAST_TIME = 20, LEAST_TICKS = 12; /* the narrowest range, in microseconds and in ticks */
const LEAST_FOLD = 0.1; /* A shorter part of the run's time is not worth folding. */

class View {
  constructor() {
    this.axis = "time";
    this.view = null; /* {from, to} while zoomed in */
    this.fold = null; /* {tick, number, seconds} of the first step, if the part before it can be folded */
    this.isFolded = false;
    this.left = this.right = 0; /* the ends of the plot, in pixels */
  }

  /* Shows all of another capture, with the part before its first step folded. */
  setCapture(capture) {
    this.capture = capture;
    this.view = null;
    this.isFolded = false;
    this.fold = capture.firstStep;
    const { from, to } = this.wholeTime();
    if (this.fold && this.fold.seconds * 1e6 < LEAST_FOLD * (to - from)) this.fold = null;
    this.isFolded = this.fold !== null;
  }

  /* Shows all of the run, with or without what comes before the first step. */
  showAll(isFolded) {
    this.view = null;
    this.isFolded = isFolded && this.fold !== null;
  }

  /* Unfolds if the tick lies in the folded part; returns whether it did. */
  unfoldFor(tick) {
    const isHidden = this.isFolded && tick < this.fold.tick;
    if (isHidden) this.isFolded = false;
    return isHidden;
  }

  setAxis(axis) {
    const { from, to } = this.range();
    const ticks = [this.tickAt(from), this.tickAt(to)];
    const isZoomed = this.isZoomed();
    this.axis = axis;
    this.view = null;
    if (isZoomed) this.setRange(this.coordinateOf(ticks[0]), this.coordinateOf(ticks[1]));
  }

  wholeTime() {
    const { time, ticks, metadata } = this.capture;
    const to = metadata.window ? time[ticks - 1] : Math.max(time[ticks - 1], metadata.duration * 1e6);
    return { from: time[0], to: Math.max(to, time[0] + 1) };
  }

  whole() {
    return this.axis === "time" ? this.wholeTime() : { from: 0, to: Math.max(this.capture.ticks - 1, 1) };
  }

  domain() {
    const { from, to } = this.whole();
    return { from: this.isFolded ? Math.min(this.coordinateOf(this.fold.tick), to - 1) : from, to };
  }

  range() {
    return this.view ?? this.domain();
  }

  isZoomed() {
    return this.view !== null;
  }

  /* Whether the band that stands for the folded part is drawn: not where the range begins later. */
  hasBand() {
    return this.isFolded && this.range().from <= this.domain().from;
  }

  isWholeRun() {
    return !this.isZoomed() && !this.isFolded;
  }

  /* Shows this range, or the nearest one that lies in the domain. */
  setRange(from, to) {
    const domain = this.domain();
    const most = domain.to - domain.from;
    const least = Math.min(this.axis === "time" ? LEAST_TIME : LEAST_TICKS, most);
    const length = Math.min(Math.max(to - from, least), most);
    const middle = (from + to) / 2;
    from = Math.min(Math.max(length === to - from ? from : middle - length / 2, domain.from), domain.to - length);
    this.view = length >= most ? null : { from, to: from + length };
  }

  zoom(factor, about) {
    const { from, to } = this.range();
    this.setRange(about - (about - from) * factor, about + (to - about) * factor);
  }

  pan(by) {
    const { from, to } = this.range();
    this.setRange(from + by, to + by);
  }

  coordinateOf(tick) {
    return this.axis === "time" ? this.capture.time[tick] : tick;
  }

  tickAt(coordinate) {
    if (this.axis === "time") return this.capture.tickAtTime(coordinate);
    return Math.min(Math.max(Math.floor(coordinate), 0), this.capture.ticks - 1);
  }

  x(coordinate) {
    const { from, to } = this.range();
    return this.left + ((coordinate - from) / (to - from)) * (this.right - this.left);
  }

  coordinateAt(x) {
    const { from, to } = this.range();
    return from + ((x - this.left) / (this.right - this.left)) * (to - from);
  }
}
