/* heat.js - the heat map: a row for each rank, a column for each time or part of a step. */

const HEAT = { left: 66, right: 12, top: 6, bottom: 22, row: 22, least: 44, most: 560 };
const RAMPS = {
  light: { low: [236, 241, 248], high: [8, 48, 107], less: [33, 102, 172], none: [247, 247, 247], more: [178, 24, 43] },
  dark: { low: [27, 36, 48], high: [158, 202, 255], less: [92, 160, 230], none: [40, 44, 50], more: [244, 109, 100] },
};

function isDark() {
  const theme = document.documentElement.dataset.theme;
  return theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function mix(from, to, part) {
  return from.map((value, i) => Math.round(value + (to[i] - value) * part));
}

/* The colour of a value: 0 to 1 for bytes, -1 to 1 for a difference. */
function shadeColour(shade, value) {
  const ramp = RAMPS[isDark() ? "dark" : "light"];
  if (shade === "bytes") return mix(ramp.low, ramp.high, value);
  return mix(ramp.none, value < 0 ? ramp.less : ramp.more, Math.abs(value));
}

class HeatMap {
  /* `job`: a RanksJob. */
  constructor(job) {
    this.job = job;
    this.base = find("heat-base");
    this.over = find("heat-over");
    this.rows = job.rows;
    const height = Math.min(Math.max(this.rows.length * HEAT.row, HEAT.least), HEAT.most);
    find("heat").style.height = `${height + HEAT.top + HEAT.bottom}px`;
  }

  /* Where the cells are, in CSS pixels. */
  area() {
    const box = this.base.getBoundingClientRect();
    return { x: HEAT.left, y: HEAT.top, width: Math.max(box.width - HEAT.left - HEAT.right, 10),
      height: box.height - HEAT.top - HEAT.bottom };
  }

  /* The row and the column at a place of the element; null outside of the cells. */
  at(x, y, axis) {
    const area = this.area();
    const row = Math.floor(((y - area.y) / area.height) * this.rows.length);
    const column = Math.floor(((x - area.x) / area.width) * this.job.columns(axis));
    if (row < 0 || row >= this.rows.length) return null;
    return { row, column: Math.min(Math.max(column, 0), this.job.columns(axis) - 1) };
  }

  draw(theme, axis, shade) {
    const { context } = prepareCanvas(this.base);
    const area = this.area();
    this.drawCells(context, area, axis, shade);
    this.drawMissing(context, theme, area);
    this.drawEnds(context, theme, area);
    this.drawLabels(context, theme, area, axis);
  }

  /* Where several ranks share a row of pixels, it shows the one that holds most, or differs most. */
  drawCells(context, area, axis, shade) {
    const columns = this.job.columns(axis), count = this.rows.length;
    const lines = Math.max(Math.min(count, Math.round(area.height * (window.devicePixelRatio || 1))), 1);
    const image = new ImageData(columns, lines);
    const values = this.job.shades(axis, shade);
    for (let line = 0; line < lines; line++) {
      const first = Math.floor((line * count) / lines),
        last = Math.max(Math.floor(((line + 1) * count) / lines), first + 1);
      for (let column = 0; column < columns; column++) {
        let value = NaN;
        for (let row = first; row < last; row++) {
          const index = this.rows[row].index;
          if (index < 0) continue;
          const one = values[index * columns + column];
          if (one === one && !(Math.abs(one) <= Math.abs(value))) value = one;
        }
        if (value !== value) continue;
        const [red, green, blue] = shadeColour(shade, value);
        image.data.set([red, green, blue, 255], 4 * (line * columns + column));
      }
    }
    const cells = document.createElement("canvas");
    cells.width = columns;
    cells.height = lines;
    cells.getContext("2d").putImageData(image, 0, 0);
    context.imageSmoothingEnabled = false;
    context.drawImage(cells, area.x, area.y, area.width, area.height);
  }

  yOf(row, area) {
    return area.y + (row / this.rows.length) * area.height;
  }

  drawMissing(context, theme, area) {
    context.fillStyle = theme.pattern(context, theme.hatch);
    this.rows.forEach((each, row) => {
      if (each.index < 0) context.fillRect(area.x, this.yOf(row, area), area.width,
        Math.max(area.height / this.rows.length, 1));
    });
  }

  /* A mark at the right of each rank that did not finish. */
  drawEnds(context, theme, area) {
    context.fillStyle = theme.alarm;
    this.rows.forEach((each, row) => {
      if (each.index >= 0 && !this.job.ranks[each.index].ok)
        context.fillRect(area.x + area.width + 3, this.yOf(row, area), 6,
          Math.max(area.height / this.rows.length - 1, 1.5));
    });
  }

  drawLabels(context, theme, area, axis) {
    context.font = `12px ${theme.font}`;
    context.fillStyle = theme.soft;
    context.textBaseline = "middle";
    context.textAlign = "right";
    const every = Math.max(decimalStep((14 * this.rows.length) / area.height), 1);
    this.rows.forEach((each, row) => {
      if (row % every === 0) context.fillText(`rank ${each.rank}`, area.x - 6, this.yOf(row + 0.5, area));
    });
    context.textBaseline = "top";
    context.textAlign = "center";
    for (const [part, text] of this.job.ticks(axis, area.width)) {
      const x = area.x + part * area.width;
      context.fillRect(x, area.y + area.height, 1, 4);
      const half = context.measureText(text).width / 2;
      context.fillText(text, Math.min(Math.max(x, area.x + half), area.x + area.width - half), area.y + area.height +
        6);
    }
  }

  /* Outlines of the rank that is shown, and of the cell that is pointed at. */
  mark(theme, axis, selected, pointed) {
    const { context } = prepareCanvas(this.over);
    const area = this.area(), height = Math.max(area.height / this.rows.length, 3);
    const top = (row) => Math.min(this.yOf(row, area), area.y + area.height - height);
    context.lineWidth = 2;
    context.strokeStyle = theme.accent;
    if (selected !== null) context.strokeRect(area.x - 1, top(selected), area.width + 2, height);
    if (!pointed) return;
    const columns = this.job.columns(axis), width = Math.max(area.width / columns, 3);
    context.lineWidth = 1;
    context.strokeStyle = theme.ink;
    context.strokeRect(area.x - 1, top(pointed.row), area.width + 2, height);
    context.strokeRect(area.x + (pointed.column / columns) * area.width, top(pointed.row) - 1, width, height + 2);
  }

  drawScale(axis, shade) {
    const { context, width, height } = prepareCanvas(find("scale-bar"));
    for (let x = 0; x < width; x++) {
      const value = shade === "bytes" ? x / width : (2 * x) / width - 1;
      context.fillStyle = `rgb(${shadeColour(shade, value).join()})`;
      context.fillRect(x, 0, 1, height);
    }
    const most = this.job.scale(axis, shade);
    find("scale-low").textContent = shade === "bytes" ? "0" : change(-most);
    find("scale-high").textContent = shade === "bytes" ? size(most) : change(most);
  }
}
