/* timeline.js - bytes over time, stacked by category. It draws, and says which tick is where; what happens when it is
 * pointed at is in hands.js. */

const MARGIN = { top: 22, bottom: 44, right: 10 };
const BAND = 18; /* height of the phases */

class Timeline extends View {
  constructor(base, over) {
    super();
    this.base = base;
    this.over = over;
    this.ownScale = false; /* whether the share fills the height */
  }

  /* Show a device of a capture; `module` is a node, or -1. */
  show(capture, device, module) {
    if (this.capture !== capture) this.view = null;
    this.capture = capture;
    this.device = device;
    this.series = capture.series(device);
    const share = module < 0 ? null : capture.series(device, module);
    /* One that could hardly be seen beside the whole is drawn on a scale of its own. */
    if (share !== this.share) this.ownScale = share !== null && share.total[share.peak] < 0.2 * this.series.total[this.series.peak];
    this.share = share;
  }

  y(bytes) {
    return this.bottom - (bytes / this.top) * (this.bottom - MARGIN.top);
  }

  /* The tick that is drawn at this x: where it held most within the pixel. */
  drawnAt(x) {
    const column = Math.floor(((x - this.left) / (this.right - this.left)) * this.columns);
    return this.drawn[Math.min(Math.max(column, 0), this.columns - 1)];
  }

  /* The same with the place, which is not where the tick begins if nothing has happened since. */
  spotAt(x) {
    const tick = this.drawnAt(x);
    const place = this.placeAt(Math.min(Math.max(x, this.left), this.right));
    return { tick, place: Math.max(place, this.placeOf(tick)) };
  }

  /* ---- drawing ---- */
  draw(theme) {
    const { context, width, height } = prepare(this.base);
    this.left = width < 520 ? 52 : 66;
    this.right = width - MARGIN.right;
    this.bottom = height - MARGIN.bottom;
    this.theme = theme;
    context.font = `11px ${theme.font}`;
    this.measure(Math.max(Math.round(this.right - this.left), 1));
    this.drawGrid(context);
    this.drawPlot(context);
    this.drawBand(context);
    this.drawSteps(context);
    this.drawGaps(context);
    this.drawMarks(context);
  }

  /* For each column of pixels: the tick where it held most, the sums then, and the least. */
  measure(columns) {
    this.columns = columns;
    this.drawn = new Uint32Array(columns);
    this.stacks = new Float64Array(columns * COUNT);
    this.floors = new Float64Array(columns);
    const { series } = this;
    const sums = new Float64Array(COUNT);
    const first = series.at(this.tickAt(this.placeAt(this.left)));
    let most = 0, before = first;
    for (let column = 0; column < columns; column++) {
      const place = this.placeAt(this.left + ((column + 1) * (this.right - this.left)) / columns);
      const last = Math.max(series.at(this.tickAt(place)), before);
      const best = series.argmost(before, last);
      this.drawn[column] = best > before ? series.tick[best] : this.startOf(column, best);
      this.stacks.set(series.sums(best, sums), column * COUNT);
      this.floors[column] = series.total[series.argleast(before, last)];
      most = Math.max(most, series.total[best]);
      before = last;
    }
    this.changes = before - first;
    const reserved = this.mostReserved();
    this.top = Math.max(most, reserved <= 1.7 * most ? reserved : 0, 1) * 1.1;
    if (this.share) this.measureShare();
  }

  /* What the chosen module holds of it at the same ticks. */
  measureShare() {
    const { share, columns } = this;
    const sums = new Float64Array(COUNT);
    this.shares = new Float64Array(columns * COUNT);
    for (let i = 0; i < columns; i++) this.shares.set(share.sums(share.at(this.drawn[i]), sums), i * COUNT);
    const most = this.totals(this.shares).reduce((a, b) => Math.max(a, b), 0);
    if (this.ownScale && most) this.top = most * 1.3;
  }

  /* Where nothing changed in the column, the tick at its left, so that what ran then is told. */
  startOf(column, change) {
    const tick = this.tickAt(this.placeAt(this.left + (column * (this.right - this.left)) / this.columns));
    return Math.max(tick, this.series.tick[change]);
  }

  mostReserved() {
    const { ticks, bytes } = this.capture.reserved[this.device];
    const { from, to } = this.range();
    const first = Math.max(lastAt(ticks, this.tickAt(from)), 0), last = lastAt(ticks, this.tickAt(to));
    return bytes.slice(first, last + 1).reduce((a, b) => Math.max(a, b), 0);
  }

  drawGrid(context) {
    const { theme } = this;
    const step = byteSteps(this.top, 6);
    context.strokeStyle = theme.line;
    context.fillStyle = theme.soft;
    context.textBaseline = "middle";
    context.textAlign = "right";
    for (let bytes = 0; bytes <= this.top; bytes += step) {
      const y = Math.round(this.y(bytes)) + 0.5;
      context.beginPath();
      context.moveTo(this.left, y);
      context.lineTo(this.right, y);
      context.stroke();
      context.fillText(shortSize(bytes), this.left - 6, y);
    }
    this.drawPlaces(context);
  }

  /* Times, or numbers of events, below. */
  drawPlaces(context) {
    const { from, to } = this.range();
    const inTime = this.axis === "time";
    const step = roundStep(((to - from) * 90) / (this.right - this.left));
    const y = this.bottom + BAND + 14;
    context.fillStyle = this.theme.soft;
    context.textAlign = "center";
    for (let place = Math.ceil(from / step) * step; place <= to; place += step) {
      const text = inTime ? timeLabel(place, step) : Math.round(this.capture.momentOf(Math.round(place))).toLocaleString("en");
      const half = context.measureText(text).width / 2;
      const x = this.x(place);
      if (x - half > 0 && x + half < this.right + MARGIN.right) context.fillText(text, x, y);
    }
  }

  drawPlot(context) {
    context.save();
    context.beginPath();
    context.rect(this.left, MARGIN.top, this.right - this.left, this.bottom - MARGIN.top + 1);
    context.clip();
    this.drawStacks(context);
    context.restore();
    this.drawReserved(context);
  }

  drawStacks(context) {
    if (this.share && this.ownScale) return this.drawShare(context);
    context.save();
    context.globalAlpha = this.share ? 0.22 : 1;
    this.drawStack(context, this.stacks, this.series.ever);
    context.restore();
    if (this.share) this.drawShare(context);
    else this.drawFloor(context);
    this.drawOutline(context);
  }

  drawStack(context, stacks, ever) {
    const below = new Float64Array(this.columns), above = new Float64Array(this.columns);
    for (const category of STACKED) {
      if (!ever[category]) continue;
      for (let i = 0; i < this.columns; i++) above[i] = below[i] + stacks[i * COUNT + category];
      this.area(context, below, above);
      this.theme.fill(context, category);
      below.set(above);
    }
  }

  /* A path between two lines that go in steps. */
  area(context, below, above) {
    const wide = (this.right - this.left) / this.columns;
    context.beginPath();
    for (let i = 0; i < this.columns; i++) {
      const y = this.y(above[i]);
      context.lineTo(this.left + i * wide, y);
      context.lineTo(this.left + (i + 1) * wide, y);
    }
    for (let i = this.columns - 1; i >= 0; i--) {
      const y = this.y(below[i]);
      context.lineTo(this.left + (i + 1) * wide, y);
      context.lineTo(this.left + i * wide, y);
    }
    context.closePath();
  }

  totals(stacks) {
    return Float64Array.from({ length: this.columns }, (_, i) => {
      let total = 0;
      for (let c = 0; c < COUNT; c++) total += stacks[i * COUNT + c];
      return total;
    });
  }

  /* Within a column it also held less: above the least, the colours are paler. */
  drawFloor(context) {
    this.area(context, this.floors, this.totals(this.stacks));
    context.save();
    context.globalAlpha = 0.38;
    context.fillStyle = this.theme.paper;
    context.fill();
    context.restore();
  }

  drawOutline(context) {
    const { left, columns } = this;
    if (this.changes > 3 * columns) return; /* it would be all that is seen */
    const totals = this.totals(this.stacks);
    const wide = (this.right - left) / columns;
    context.beginPath();
    totals.forEach((total, i) => {
      context.lineTo(left + i * wide, this.y(total));
      context.lineTo(left + (i + 1) * wide, this.y(total));
    });
    context.strokeStyle = this.theme.soft;
    context.lineWidth = 1;
    context.stroke();
  }

  drawShare(context) {
    this.drawStack(context, this.shares, this.share.ever);
    this.area(context, new Float64Array(this.columns), this.totals(this.shares));
    context.strokeStyle = this.theme.ink;
    context.lineWidth = 1;
    context.stroke();
  }

  drawReserved(context) {
    const { ticks, bytes } = this.capture.reserved[this.device];
    if (ticks.length < 2) return;
    const { theme } = this;
    context.save();
    context.beginPath();
    context.rect(this.left, MARGIN.top, this.right - this.left, this.bottom - MARGIN.top);
    context.clip();
    context.beginPath();
    for (let i = 1; i < ticks.length; i++) {
      const until = i + 1 < ticks.length ? this.placeOf(ticks[i + 1]) : this.domain().to;
      context.lineTo(this.x(this.placeOf(ticks[i])), this.y(bytes[i]));
      context.lineTo(this.x(until), this.y(bytes[i]));
    }
    context.setLineDash([6, 3]);
    context.strokeStyle = theme.ink;
    context.stroke();
    context.restore();
    const most = this.mostReserved();
    if (!most) return;
    const beyond = most > this.top;
    context.fillStyle = theme.ink;
    context.textAlign = "left";
    context.fillText(`${beyond ? "↑ " : ""}reserved ${size(most)}`, this.left + 6, beyond ? MARGIN.top + 8 : this.y(most) - 8);
  }

  /* ---- bands and marks ---- */
  drawBand(context) {
    const { capture, theme } = this;
    const { runTicks, runPhase } = capture;
    const { from, to } = this.range();
    const y = this.bottom + 1;
    context.fillStyle = theme.panel;
    context.fillRect(this.left, y, this.right - this.left, BAND - 2);
    context.textAlign = "center";
    let run = Math.max(lastAt(runTicks, this.tickAt(from)), 0);
    let drawnTo = this.left;
    while (run < runTicks.length && this.placeOf(runTicks[run]) <= to) {
      const phase = runPhase[run];
      let next = run + 1;
      while (next < runTicks.length && runPhase[next] === phase) next++;
      const begin = Math.max(this.x(this.placeOf(runTicks[run])), this.left);
      const until = next < runTicks.length ? this.placeOf(runTicks[next]) : this.domain().to;
      const end = Math.min(this.x(until), this.right);
      if (phase && end > drawnTo) {
        this.drawPhase(context, phase, Math.min(begin, end - 0.5), end, y);
        drawnTo = Math.ceil(end * 2) / 2 - 0.5;
      }
      run = next;
    }
  }

  drawPhase(context, phase, begin, end, y) {
    const { theme } = this;
    context.fillStyle = theme.phases[phase];
    context.fillRect(begin, y, end - begin, BAND - 2);
    if (PHASES[phase] === "recompute" && end - begin > 3) {
      context.fillStyle = theme.pattern(context, theme.hatch);
      context.fillRect(begin, y, end - begin, BAND - 2);
    }
    const word = PHASES[phase];
    const room = end - begin - 4;
    const text = [word, word[0].toUpperCase()].find((each) => context.measureText(each).width <= room);
    if (!text) return;
    context.fillStyle = theme.phaseInk[phase];
    context.fillText(text, (begin + end) / 2, y + BAND / 2);
  }

  /* Where steps begin. */
  drawSteps(context) {
    const { capture, theme } = this;
    const { stepTicks, stepNumbers } = capture;
    const { from, to } = this.range();
    const marks = [];
    for (let i = 0; i < stepTicks.length; i++) {
      const place = this.placeOf(stepTicks[i]);
      if (stepNumbers[i] && place >= from && place <= to) marks.push([this.x(place), stepNumbers[i]]);
    }
    const spacing = (this.right - this.left) / Math.max(marks.length, 1);
    const every = roundStep(Math.max(64 / spacing, 1));
    context.textAlign = "left";
    let free = 0;
    for (const [x, number] of marks) {
      const named = (number % every === 0 || every === 1) && x >= free;
      if (!named && spacing < 6) continue;
      context.fillStyle = named ? theme.faint : theme.line;
      context.fillRect(Math.round(x), named ? 4 : MARGIN.top, 1, this.bottom + BAND - (named ? 4 : MARGIN.top));
      context.fillStyle = theme.soft;
      if (!named) continue;
      free = x + 10 + context.measureText(`step ${number}`).width;
      if (free < this.right + MARGIN.right) context.fillText(`step ${number}`, x + 4, 9);
    }
  }

  /* Where events were lost, nothing is known. */
  drawGaps(context) {
    const { jumpTicks } = this.capture;
    for (const tick of jumpTicks.slice(1)) {
      const begin = Math.max(this.x(this.placeOf(tick - 1)), this.left);
      const end = Math.min(Math.max(this.x(this.placeOf(tick)), begin + 3), this.right);
      if (end < this.left || begin > this.right) continue;
      context.fillStyle = this.theme.pattern(context, this.theme.hatch);
      context.fillRect(begin, MARGIN.top, end - begin, this.bottom - MARGIN.top);
      if (end - begin > 40) this.drawLost(context, (begin + end) / 2);
    }
  }

  drawLost(context, x) {
    context.textAlign = "center";
    context.fillStyle = this.theme.paper;
    context.fillRect(x - 16, MARGIN.top + 30, 32, 16);
    context.fillStyle = this.theme.ink;
    context.fillText("lost", x, MARGIN.top + 38);
  }

  drawMarks(context) {
    const { capture, series, theme } = this;
    for (const oom of capture.ooms)
      if (oom.device === this.device) this.drawMark(context, oom.tick, "✕", `out of memory: ${size(oom.requested)} requested`, theme.alarm, true);
    const peak = series.tick[series.peak];
    if (series.total[series.peak]) this.drawMark(context, peak, "▼", `peak ${size(series.total[series.peak])}`, theme.ink, false);
  }

  drawMark(context, tick, sign, text, colour, line) {
    const x = this.x(this.placeOf(tick));
    if (x < this.left - 1 || x > this.right + 1) return;
    const y = this.y(this.series.total[this.series.at(tick)]);
    context.save();
    context.font = `bold 12px ${this.theme.font}`;
    context.fillStyle = context.strokeStyle = colour;
    if (line) context.fillRect(Math.round(x) - 1, MARGIN.top, 2, this.bottom - MARGIN.top);
    const wide = context.measureText(`${sign} ${text}`).width;
    const half = context.measureText(sign).width / 2;
    const before = x - half + wide > this.right;
    const start = Math.max(before ? x + half - wide : x - half, 2);
    const at = line ? MARGIN.top + 24 : Math.max(y - 10, MARGIN.top + 6);
    context.textAlign = "left";
    context.fillStyle = this.theme.paper;
    context.globalAlpha = 0.85;
    context.fillRect(start - 3, at - 8, wide + 6, 16);
    context.globalAlpha = 1;
    context.fillStyle = colour;
    context.fillText(before ? `${text} ${sign}` : `${sign} ${text}`, start, at);
    context.restore();
  }

  /* What follows the pointer and the selected tick, above the rest: a tick, and the place within it, if one was
   * pointed at. */
  drawOver(selected, hovered) {
    const { context } = prepare(this.over);
    if (!this.theme) return;
    for (const [spot, colour, dash] of [[hovered, this.theme.soft, [3, 3]], [selected, this.theme.accent, []]]) {
      if (!spot) continue;
      const { tick } = spot;
      const x = this.x(spot.place ?? this.placeOf(tick));
      if (x < this.left - 0.5 || x > this.right + 0.5) continue;
      context.strokeStyle = context.fillStyle = colour;
      context.lineWidth = dash.length ? 1 : 2;
      context.setLineDash(dash);
      context.beginPath();
      context.moveTo(x, MARGIN.top - 4);
      context.lineTo(x, this.bottom + BAND);
      context.stroke();
      context.beginPath();
      context.arc(x, Math.max(this.y(this.series.total[this.series.at(tick)]), MARGIN.top), 4, 0, 7);
      context.fill();
    }
  }
}
