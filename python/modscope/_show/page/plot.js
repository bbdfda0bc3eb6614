/* plot.js - the axes and the stacked areas of the timeline. What lies around and above them is in timeline.js. */

const MARGIN = { top: 22, bottom: 44, right: 10 };
const BAND = 18; /* height of the band of phases in pixels */

class Plot extends View {
  /* The series that the vertical axis and the marks belong to. */
  get scaledSeries() {
    return this.share && this.ownScale ? this.share : this.series;
  }

  y(bytes) {
    return this.bottom - (bytes / this.top) * (this.bottom - MARGIN.top);
  }

  /* The tick that is drawn at this x: the one at which most was held within the pixel. */
  drawnAt(x) {
    const column = Math.floor(((x - this.left) / (this.right - this.left)) * this.columns);
    return this.drawn[Math.min(Math.max(column, 0), this.columns - 1)];
  }

  /* The same tick with the coordinate of the pixel, which is later than the tick's own if nothing has happened since.
   * */
  pointAt(x) {
    const tick = this.drawnAt(x);
    const coordinate = this.coordinateAt(Math.min(Math.max(x, this.left), this.right));
    return { tick, coordinate: Math.max(coordinate, this.coordinateOf(tick)) };
  }

  /* Finds for each column of pixels the tick at which most was held, the sums at that tick, and the least total. */
  measure(columns) {
    this.columns = columns;
    this.drawn = new Uint32Array(columns);
    const { series, layers } = this;
    this.stacks = new Float64Array(columns * layers.groups);
    this.floors = new Float64Array(columns);
    const sums = new Float64Array(layers.groups);
    const first = series.changeAt(this.tickAt(this.coordinateAt(this.left)));
    let most = 0, before = first;
    for (let column = 0; column < columns; column++) {
      const end = this.coordinateAt(this.left + ((column + 1) * (this.right - this.left)) / columns);
      const last = Math.max(series.changeAt(this.tickAt(end)), before);
      const best = series.maximumIn(before, last);
      this.drawn[column] = best > before ? series.tick[best] : this.firstTickOf(column, best);
      this.stacks.set(layers.sumsAfter(best, sums), column * layers.groups);
      this.floors[column] = series.total[series.minimumIn(before, last)];
      most = Math.max(most, series.total[best]);
      before = last;
    }
    this.changeCount = before - first;
    const reserved = this.mostReserved();
    this.top = measureEdited(this, Math.max(most, reserved <= HIDDEN_ABOVE * most ? reserved : 0, 1)) * 1.1;
    if (this.share) this.measureShare();
  }

  /* The series by the groups that have an area. */
  get layers() {
    return this.series.by(this.grouping);
  }

  get shareLayers() {
    return this.share.by(this.grouping);
  }

  /* Finds the share of what is selected at the same ticks. */
  measureShare() {
    const { shareLayers, columns } = this;
    const sums = new Float64Array(shareLayers.groups);
    this.shares = new Float64Array(columns * sums.length);
    for (let i = 0; i < columns; i++)
      this.shares.set(shareLayers.sumsAfter(shareLayers.changeAt(this.drawn[i]), sums), i * sums.length);
    const most = this.totals(this.shares).reduce((a, b) => Math.max(a, b), 0);
    if (this.ownScale && most) this.top = most * 1.3;
  }

  /* The first tick of a column in which nothing changed, so that the tooltip names what ran there. */
  firstTickOf(column, change) {
    const tick = this.tickAt(this.coordinateAt(this.left + (column * (this.right - this.left)) / this.columns));
    return Math.max(tick, this.series.tick[change]);
  }

  totals(stacks) {
    const { count } = this.grouping;
    return Float64Array.from({ length: this.columns }, (_, i) => {
      let total = 0;
      for (let group = 0; group < count; group++) total += stacks[i * count + group];
      return total;
    });
  }

  /* ---- axes ---- */
  textStyle(colour = this.theme.soft) {
    return { font: this.font, colour };
  }

  drawGrid(context) {
    const step = byteStep(this.top, 6);
    context.strokeStyle = this.theme.line;
    for (let bytes = 0; bytes <= this.top; bytes += step) {
      const y = Math.round(this.y(bytes)) + 0.5;
      context.beginPath();
      context.moveTo(this.axisLeft, y);
      context.lineTo(this.right, y);
      context.stroke();
      const text = shortSize(bytes);
      this.texts.place("bytes", text, [{ x: this.axisLeft - 6 - this.texts.width(text, this.font), y }],
        this.textStyle());
    }
  }

  /* Writes times, or numbers of events, below the plot. */
  drawCoordinates() {
    const { from, to } = this.range();
    const step = decimalStep(((to - from) * 90) / (this.right - this.left));
    const bounds = { left: 0, right: this.right + MARGIN.right, top: 0, bottom: Infinity };
    for (let at = Math.ceil(from / step) * step; at <= to; at += step) {
      const text = this.axis === "time" ? timeLabel(at, step)
        : this.capture.momentOf(Math.round(at)).toLocaleString("en");
      const x = this.x(at) - this.texts.width(text, this.font) / 2;
      this.texts.place("coordinate", text, [{ x, y: this.bottom + BAND + 14 }], this.textStyle(), bounds);
    }
  }

  /* ---- the plot ---- */
  drawPlot(context) {
    context.save();
    context.beginPath();
    context.rect(this.left, MARGIN.top, this.right - this.left, this.bottom - MARGIN.top + 1);
    context.clip();
    this.drawStacks(context);
    context.restore();
  }

  drawStacks(context) {
    if (this.share && this.ownScale) return this.drawShare(context);
    context.save();
    context.globalAlpha = this.share ? 0.22 : shownEdit(this) ? 0.5 : 1;
    this.drawStack(context, this.stacks, this.layers.everHeld);
    context.restore();
    if (this.share) this.drawShare(context);
    else this.drawFloors(context);
    this.drawOutline(context);
  }

  drawStack(context, stacks, everHeld) {
    const below = new Float64Array(this.columns), above = new Float64Array(this.columns);
    const { grouping } = this;
    for (const group of grouping.order) {
      if (!everHeld[group]) continue;
      for (let i = 0; i < this.columns; i++) above[i] = below[i] + stacks[i * grouping.count + group];
      this.tracePath(context, below, above);
      grouping.fill(this.theme, context, group);
      below.set(above);
    }
  }

  /* The group whose area is at this point, or -1. */
  groupAt(x, y) {
    const { grouping } = this;
    const column = Math.floor(((x - this.left) / (this.right - this.left)) * this.columns);
    if (column < 0 || column >= this.columns || y > this.bottom) return -1;
    const stacks = this.share && this.ownScale ? this.shares : this.stacks;
    let rest = ((this.bottom - y) / (this.bottom - MARGIN.top)) * this.top;
    return grouping.order.find((group) => (rest -= stacks[column * grouping.count + group]) < 0) ?? -1;
  }

  /* Begins a path around the area between two stepped lines. */
  tracePath(context, below, above) {
    const width = (this.right - this.left) / this.columns;
    context.beginPath();
    for (let i = 0; i < this.columns; i++) {
      const y = this.y(above[i]);
      context.lineTo(this.left + i * width, y);
      context.lineTo(this.left + (i + 1) * width, y);
    }
    for (let i = this.columns - 1; i >= 0; i--) {
      const y = this.y(below[i]);
      context.lineTo(this.left + (i + 1) * width, y);
      context.lineTo(this.left + i * width, y);
    }
    context.closePath();
  }

  /* Makes the colours paler above the least total of each column. */
  drawFloors(context) {
    this.tracePath(context, this.floors, this.totals(this.stacks));
    context.save();
    context.globalAlpha = 0.38;
    context.fillStyle = this.theme.paper;
    context.fill();
    context.restore();
  }

  drawOutline(context) {
    const { left, columns } = this;
    if (this.changeCount > 3 * columns) return; /* The outline would hide the areas. */
    const width = (this.right - left) / columns;
    context.beginPath();
    this.totals(this.stacks).forEach((total, i) => {
      context.lineTo(left + i * width, this.y(total));
      context.lineTo(left + (i + 1) * width, this.y(total));
    });
    context.strokeStyle = this.theme.soft;
    context.lineWidth = 1;
    context.stroke();
  }

  drawShare(context) {
    this.drawStack(context, this.shares, this.shareLayers.everHeld);
    this.tracePath(context, new Float64Array(this.columns), this.totals(this.shares));
    context.strokeStyle = this.theme.ink;
    context.lineWidth = 1;
    context.stroke();
  }

  mostReserved() {
    const { ticks, bytes } = this.capture.reserved[this.device];
    const { from, to } = this.range();
    const first = Math.max(lastIndexUpTo(ticks, this.tickAt(from)), 0), last = lastIndexUpTo(ticks, this.tickAt(to));
    return bytes.slice(first, last + 1).reduce((a, b) => Math.max(a, b), 0);
  }
}
