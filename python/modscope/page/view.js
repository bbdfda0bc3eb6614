/* view.js - which part of a run is looked at, and where in it a pixel is. A *place* is what the axis counts: microseconds,
 * or ticks. */

const LEAST_TIME = 20, LEAST_TICKS = 12; /* the narrowest view: microseconds, ticks */

class View {
  constructor() {
    this.axis = "time";
    this.view = null; /* {from, to}; null: the whole */
    this.left = this.right = 0; /* pixels */
  }

  setAxis(axis) {
    const { from, to } = this.range();
    const ends = [this.tickAt(from), this.tickAt(to)];
    const whole = this.isWhole();
    this.axis = axis;
    this.view = null;
    if (!whole) this.look(this.placeOf(ends[0]), this.placeOf(ends[1]));
  }

  domain() {
    const { time, ticks, words } = this.capture;
    if (this.axis === "events") return { from: 0, to: Math.max(ticks - 1, 1) };
    const to = words.window ? time[ticks - 1] : Math.max(time[ticks - 1], words.duration * 1e6);
    return { from: time[0], to: Math.max(to, time[0] + 1) };
  }

  range() {
    return this.view ?? this.domain();
  }

  isWhole() {
    return this.view === null;
  }

  /* Look at this range, or what is nearest to it. */
  look(from, to) {
    const domain = this.domain();
    const most = domain.to - domain.from;
    const least = Math.min(this.axis === "time" ? LEAST_TIME : LEAST_TICKS, most);
    const wide = Math.min(Math.max(to - from, least), most);
    const middle = (from + to) / 2;
    from = Math.min(Math.max(wide === to - from ? from : middle - wide / 2, domain.from), domain.to - wide);
    this.view = wide >= most ? null : { from, to: from + wide };
  }

  zoom(factor, about) {
    const { from, to } = this.range();
    this.look(about - (about - from) * factor, about + (to - about) * factor);
  }

  pan(by) {
    const { from, to } = this.range();
    this.look(from + by, to + by);
  }

  placeOf(tick) {
    return this.axis === "time" ? this.capture.time[tick] : tick;
  }

  tickAt(place) {
    if (this.axis === "time") return this.capture.tickAtTime(place);
    return Math.min(Math.max(Math.floor(place), 0), this.capture.ticks - 1);
  }

  x(place) {
    const { from, to } = this.range();
    return this.left + ((place - from) / (to - from)) * (this.right - this.left);
  }

  placeAt(x) {
    const { from, to } = this.range();
    return from + ((x - this.left) / (this.right - this.left)) * (to - from);
  }
}
