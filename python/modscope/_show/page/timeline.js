/* timeline.js - bytes over time, stacked by category or by other groups. input.js handles the pointer.
 *
 *   labels   the texts that are drawn, with their rectangles
 *   marks    what is marked, with its bytes and pixels: the peak, failed allocations, the selected and the hovered
 * tick, the peak
 *            of a change */

const FOLD_WIDTH = 24; /* width of the band that stands for the folded part, in pixels */

class Timeline extends Plot {
  constructor(base, over) {
    super();
    this.base = base;
    this.over = over;
    this.ownScale = false; /* whether the share of what is selected fills the height */
    this.grouping = null; /* what the areas stand for */
    this.marks = {};
    this.edited = null; /* the timeline of a change */
    this.capacity = null; /* {bytes, device, text} */
  }

  /* Shows a device of a capture, and the share of a module or of a group, or of none (-1, null). */
  show(capture, device, module, group) {
    if (this.capture !== capture) this.setCapture(capture);
    this.device = device;
    this.series = capture.series(device);
    const share = module < 0 && !group ? null : capture.series(device, module, group);
    /* A share that would hardly be visible is drawn at its own scale. */
    if (share !== this.share) this.ownScale = share !== null && share.peakTotal < 0.2 * this.series.peakTotal;
    this.share = share;
  }

  /* ---- drawing ---- */
  draw(theme) {
    const { context, width, height } = prepareCanvas(this.base);
    this.axisLeft = width < 520 ? 56 : 66;
    this.left = this.axisLeft + (this.hasBand() ? FOLD_WIDTH : 0);
    this.right = width - MARGIN.right;
    this.bottom = height - MARGIN.bottom;
    this.theme = theme;
    this.font = `11px ${theme.font}`;
    this.texts = new Labels(context);
    this.measure(Math.max(Math.round(this.right - this.left), 1));
    this.drawGrid(context);
    this.drawCoordinates();
    this.drawPlot(context);
    this.drawPhases(context);
    this.drawSteps(context);
    this.drawGaps(context);
    this.drawMarks(context);
    if (this.hasReserved()) this.drawReserved(context);
    drawEdited(this, context);
    this.placeLostLabels();
    if (this.hasBand()) this.drawFold(context);
    this.texts.draw();
    this.labels = this.texts.placed.filter((label) => label.text);
  }

  /* ---- reserved memory ---- */

  /* Reserved memory belongs to the device: at a module's own scale it is not drawn. */
  hasReserved() {
    return this.scaledSeries === this.series && this.mostReserved() > 0;
  }

  drawReserved(context) {
    const { ticks, bytes } = this.capture.reserved[this.device];
    context.save();
    context.beginPath();
    context.rect(this.left, MARGIN.top, this.right - this.left, this.bottom - MARGIN.top);
    context.clip();
    context.beginPath();
    for (let i = 1; i < ticks.length; i++) {
      const until = i + 1 < ticks.length ? this.coordinateOf(ticks[i + 1]) : this.domain().to;
      context.lineTo(this.x(this.coordinateOf(ticks[i])), this.y(bytes[i]));
      context.lineTo(this.x(until), this.y(bytes[i]));
    }
    context.setLineDash([6, 3]);
    context.strokeStyle = this.theme.ink;
    context.stroke();
    context.restore();
    this.placeReservedLabel(this.mostReserved());
  }

  /* Above or below the line where it is highest, at the right or the left end of that part of it. */
  placeReservedLabel(most) {
    const isAbovePlot = most > this.top;
    const text = `${isAbovePlot ? "↑ " : ""}reserved ${size(most)}`;
    const width = this.texts.width(text, this.font), { begin, end } = this.mostReservedPart(most);
    const within = (x) => Math.min(Math.max(x, this.left + 6), this.right - 6 - width);
    const ends = isAbovePlot ? [this.left + 6, this.right - 6 - width] : [within(end - 6 - width), within(begin + 6)];
    const heights = isAbovePlot ? [MARGIN.top + LINE / 2, MARGIN.top + 1.5 * LINE]
      : [this.y(most) - 9, this.y(most) + 10];
    const candidates = heights.flatMap((y) => ends.map((x) => ({ x, y })));
    this.texts.place("reserved", text, candidates, { ...this.textStyle(this.theme.ink), background: this.theme.paper },
      this.plotBounds());
  }

  /* The last part of the range in which so much was reserved, in pixels. */
  mostReservedPart(most) {
    const { ticks, bytes } = this.capture.reserved[this.device];
    const { from, to } = this.range();
    let last = lastIndexUpTo(ticks, this.tickAt(to));
    while (last > 0 && bytes[last] !== most) last--;
    const until = last + 1 < ticks.length ? Math.min(this.coordinateOf(ticks[last + 1]), to) : to;
    return { begin: this.x(Math.max(this.coordinateOf(ticks[last]), from)), end: this.x(until) };
  }

  plotBounds() {
    return { left: this.axisLeft, right: this.right + MARGIN.right, top: MARGIN.top, bottom: this.bottom };
  }

  /* ---- phases, steps, lost events ---- */
  drawPhases(context) {
    const { runningTicks, runningPhase } = this.capture;
    const { from, to } = this.range();
    const y = this.bottom + 1;
    context.fillStyle = this.theme.panel;
    context.fillRect(this.left, y, this.right - this.left, BAND - 2);
    let run = Math.max(lastIndexUpTo(runningTicks, this.tickAt(from)), 0);
    let drawnTo = this.left;
    while (run < runningTicks.length && this.coordinateOf(runningTicks[run]) <= to) {
      const phase = runningPhase[run];
      let next = run + 1;
      while (next < runningTicks.length && runningPhase[next] === phase) next++;
      const begin = Math.max(this.x(this.coordinateOf(runningTicks[run])), this.left);
      const until = next < runningTicks.length ? this.coordinateOf(runningTicks[next]) : this.lastKnown();
      const end = Math.min(this.x(until), this.right);
      if (phase && end > drawnTo) {
        this.drawPhase(context, phase, Math.min(begin, end - 0.5), end, y);
        drawnTo = Math.ceil(end * 2) / 2 - 0.5;
      }
      run = next;
    }
  }

  /* The end of the run, or of what is known of it. */
  lastKnown() {
    return this.capture.metadata.lost_at_end ? this.coordinateOf(this.capture.ticks - 1) : this.domain().to;
  }

  drawPhase(context, phase, begin, end, y) {
    const { theme } = this;
    context.fillStyle = theme.phases[phase];
    context.fillRect(begin, y, end - begin, BAND - 2);
    if (PHASES[phase] === "recompute" && end - begin > 3) {
      context.fillStyle = theme.pattern(context, theme.hatch);
      context.fillRect(begin, y, end - begin, BAND - 2);
    }
    const name = PHASES[phase];
    const room = end - begin - 4;
    const text = [name, name[0].toUpperCase()].find((each) => this.texts.width(each, this.font) <= room);
    if (!text) return;
    const x = (begin + end - this.texts.width(text, this.font)) / 2;
    this.texts.place("phase", text, [{ x, y: y + BAND / 2 - 1 }], this.textStyle(theme.phaseInk[phase]));
  }

  /* Draws a line where each step begins, with its number where there is room. */
  drawSteps(context) {
    const { stepTicks, stepNumbers } = this.capture;
    const { from, to } = this.range();
    const steps = [];
    for (let i = 0; i < stepTicks.length; i++) {
      const coordinate = this.coordinateOf(stepTicks[i]);
      if (stepNumbers[i] && coordinate >= from && coordinate <= to) steps.push([this.x(coordinate), stepNumbers[i]]);
    }
    const spacing = (this.right - this.left) / Math.max(steps.length, 1);
    const every = decimalStep(Math.max(64 / spacing, 1));
    const bounds = { left: 0, right: this.right + MARGIN.right, top: 0, bottom: MARGIN.top };
    const open = this.capture.stepAt(this.tickAt(from)), text = `step ${open}`;
    const isOpen = open && this.isZoomed()
      && (!steps.length || steps[0][0] > this.left + this.texts.width(text, this.font) + 12);
    if (isOpen) this.texts.place("step", text, [{ x: this.left + 4, y: 9 }], this.textStyle(), bounds);
    for (const [x, number] of steps) {
      const isNamed = (number % every === 0 || every === 1) &&
        this.texts.place("step", `step ${number}`, [{ x: x + 4, y: 9 }], this.textStyle(), bounds);
      if (!isNamed && spacing < 6) continue;
      context.fillStyle = isNamed ? this.theme.faint : this.theme.line;
      const top = isNamed ? 4 : MARGIN.top;
      context.fillRect(Math.round(x), top, 1, this.bottom + BAND - top);
    }
  }

  /* The rectangles in which events were lost. */
  gaps() {
    const { jumpTicks, ticks, metadata } = this.capture;
    const ends = jumpTicks.slice(1).map((tick) => [tick - 1, this.coordinateOf(tick)]);
    if (metadata.lost_at_end) ends.push([ticks - 1, this.domain().to]);
    const gaps = ends.map(([tick, until]) => {
      const begin = Math.min(Math.max(this.x(this.coordinateOf(tick)), this.left), this.right - 3);
      return { begin, end: Math.min(Math.max(this.x(until), begin + 3), this.right) };
    });
    return gaps.filter(({ begin, end }) => end >= this.left && begin <= this.right);
  }

  /* What was held there is not known: nothing is drawn but the hatching. */
  drawGaps(context) {
    for (const style of [this.theme.paper, this.theme.pattern(context, this.theme.hatch)]) {
      context.fillStyle = style;
      for (const { begin, end } of this.gaps())
        context.fillRect(begin, MARGIN.top, end - begin, this.bottom - MARGIN.top);
    }
  }

  placeLostLabels() {
    const style = { ...this.textStyle(this.theme.ink), background: this.theme.paper };
    const width = this.texts.width("lost", this.font);
    for (const { begin, end } of this.gaps()) {
      const candidates = [38, 38 + LINE, 38 + 2 * LINE].map((y) =>
        ({ x: (begin + end - width) / 2, y: MARGIN.top + y }));
      if (end - begin > 40) this.texts.place("lost", "lost", candidates, style, this.plotBounds());
    }
  }

  /* The hatched band that stands for what comes before the first step. */
  drawFold(context) {
    const box = { x: this.axisLeft, y: MARGIN.top, width: FOLD_WIDTH - 2, height: this.bottom - MARGIN.top };
    context.fillStyle = this.theme.panel;
    context.fillRect(box.x, box.y, box.width, box.height);
    context.fillStyle = this.theme.pattern(context, this.theme.faintHatch);
    context.fillRect(box.x, box.y, box.width, box.height);
    const style = { ...this.textStyle(), background: this.theme.paper };
    this.texts.placeVertical("fold", this.foldText(), box, style);
  }

  foldText() {
    return `before step ${this.fold.number}, ${duration(this.fold.seconds)}`;
  }

  /* ---- marks ---- */

  /* Marks the peak of the device and failed allocations. The last failure has the most important label, then the peak.
     */
  drawMarks(context) {
    const failed = this.capture.ooms.filter((oom) => oom.device === this.device).reverse();
    const peak = this.markPeak(context);
    const ooms = failed.map((oom) => this.markOom(context, oom)).filter(Boolean);
    this.marks = { peak, ooms };
    const [last, ...others] = ooms.map((oom) => ["oom", oom.text, oom.x, MARGIN.top + LINE / 2, this.theme.alarm]);
    const labels = [last, peak && ["peak", peak.text, peak.x, peak.y - 7, this.theme.ink], ...others];
    for (const label of labels) if (label) this.placeMarkLabel(...label);
  }

  isVisible(x) {
    return x >= this.left - 1 && x <= this.right + 1;
  }

  /* A triangle that points at what is drawn: the device's peak or, at its own scale, the module's share at that
     moment. */
  markPeak(context) {
    const { series, scaledSeries } = this;
    const tick = series.peakTick, bytes = scaledSeries.totalAt(tick);
    const x = this.x(this.coordinateOf(tick)), y = this.y(bytes);
    if (!series.peakTotal || !this.isVisible(x)) return null;
    context.fillStyle = this.theme.ink;
    context.beginPath();
    context.moveTo(x, y - 2);
    context.lineTo(x - 5, y - 11);
    context.lineTo(x + 5, y - 11);
    context.fill();
    this.texts.keepFree("peak", x - 5, y - 11, 10, 9);
    const device = this.capture.metadata.devices[this.device];
    const peak = this.capture.metadata.is_lower_bound ? "peak: at least" : "peak";
    const text = scaledSeries === series ? `${peak} ${size(bytes)}` : `at the peak of ${device}: ${size(bytes)}`;
    return { tick, bytes, x, y, text };
  }

  /* A vertical line: the request failed, so it has no place on the vertical axis. */
  markOom(context, { tick, requested }) {
    const x = this.x(this.coordinateOf(tick));
    if (!this.isVisible(x)) return null;
    context.fillStyle = this.theme.alarm;
    context.fillRect(Math.round(x) - 1, MARGIN.top, 2, this.bottom - MARGIN.top);
    return { tick, requested, x, text: `✕ out of memory: ${size(requested)} requested` };
  }

  /* Right or left of the mark, or of another mark close to it, or across it where the plot is narrow; a few lines
     lower or
   * higher where that is taken. */
  placeMarkLabel(kind, text, x, y, colour) {
    const style = { font: `bold 12px ${this.theme.font}`, colour, background: this.theme.paper };
    const width = this.texts.width(text, style.font);
    const first = Math.min(Math.max(y, MARGIN.top + LINE / 2), this.bottom - LINE / 2);
    const across = Math.max(Math.min(x + 9, this.right - width), this.axisLeft + 2);
    const starts = [x + 9, x - 9 - width, x + 24, x - 24 - width, across];
    const candidates = [0, 1, 2, 3, 4, -1, -2].flatMap((line) =>
      starts.map((start) => ({ x: start, y: first + line * LINE })));
    this.texts.place(kind, text, candidates, style, this.plotBounds());
  }

  /* Draws the selected and the hovered point above the rest: {tick, coordinate}, where the coordinate may be null.
     `marked`:
   * the two ends of the part that a drag marks, or null. */
  drawPoints(selected, hovered, marked = null) {
    const { context } = prepareCanvas(this.over);
    if (!this.theme) return;
    if (marked) this.drawMarked(context, ...marked);
    this.marks.hovered = this.drawPoint(context, hovered, this.theme.soft, [3, 3]);
    this.marks.selected = this.drawPoint(context, selected, this.theme.accent, []);
  }

  drawMarked(context, a, b) {
    const from = Math.max(Math.min(a, b), this.left), to = Math.min(Math.max(a, b), this.right);
    context.fillStyle = this.theme.accent;
    context.globalAlpha = 0.18;
    context.fillRect(from, MARGIN.top, to - from, this.bottom + BAND - MARGIN.top);
    context.globalAlpha = 1;
    for (const x of [from, to]) context.fillRect(Math.round(x), MARGIN.top, 1, this.bottom + BAND - MARGIN.top);
  }

  drawPoint(context, point, colour, dash) {
    if (!point) return null;
    const x = this.x(point.coordinate ?? this.coordinateOf(point.tick));
    if (x < this.left - 0.5 || x > this.right + 0.5) return null;
    const bytes = this.scaledSeries.totalAt(point.tick);
    const y = Math.max(this.y(bytes), MARGIN.top);
    context.strokeStyle = context.fillStyle = colour;
    context.lineWidth = dash.length ? 1 : 2;
    context.setLineDash(dash);
    context.beginPath();
    context.moveTo(x, MARGIN.top - 4);
    context.lineTo(x, this.bottom + BAND);
    context.stroke();
    context.beginPath();
    context.arc(x, y, 4, 0, 7);
    context.fill();
    return { tick: point.tick, bytes, x, y };
  }
}
