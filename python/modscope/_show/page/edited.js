/* edited.js - the timeline that the run would have after a change, drawn over the real one, and the GPU's capacity.
 *
 * A change has a curve: points that stand for equal parts of the capture's events, each with the highest figures of
 * them. What a change inserts, such as a recomputation, belongs to the event before which it happens, and takes no
  * width. */

/* A line that is so many times as high as the rest is not drawn: its label says where it is. */
const HIDDEN_ABOVE = 1.7;

/* The numbers whose differences these are. */
function addUpDifferences(differences) {
  let sum = 0;
  return Float64Array.from(differences, (each) => (sum += each));
}

class Edited {
  /* `part`: the capture's metadata.fit or metadata.plan; `change`: one of its levers or points. */
  constructor(capture, part, change) {
    const moments = addUpDifferences(part.moments);
    this.device = part.device;
    this.isCaching = part.verb === "reserved";
    this.ticks = Float64Array.from(moments, (moment) => capture.tickOf(moment));
    this.reserved = addUpDifferences(change.reserved_curve);
    this.allocated = addUpDifferences(change.allocated_curve);
    this.isExact = moments.length < 2 || moments.at(-1) - moments[0] <= moments.length; /* a point for each event */
    this.end = Edited.endOf(capture, moments);
  }

  /* The tick at which the curve ends. Of a run that died, the step in which it did is not replayed. */
  static endOf(capture, moments) {
    const last = moments.at(-1), width = last - (moments.at(-2) ?? last) + 1;
    return last + 2 * width >= capture.momentOf(capture.ticks - 1) ? Infinity : capture.tickOf(last + width);
  }

  /* The point that the tick lies in, or -1. */
  pointAt(tick) {
    return tick > this.end ? -1 : lastIndexUpTo(this.ticks, tick);
  }

  /* The highest of a line between two ticks; NaN where it has none. */
  highest(line, from, to) {
    if (from > this.end) return NaN;
    let most = 0;
    for (let i = Math.max(this.pointAt(from), 0); i < this.ticks.length && this.ticks[i] <= to; i++)
      most = Math.max(most, line[i]);
    return most;
  }
}

/* The edited timeline that is drawn, or null: another device or a module's own scale may be shown. */
function shownEdit(timeline) {
  const { edited } = timeline;
  return edited && edited.device === timeline.device && timeline.scaledSeries === timeline.series ? edited : null;
}

/* {bytes, device, text} of the capacity that is drawn, or null. */
function shownCapacity(timeline) {
  const { capacity } = timeline;
  return capacity && capacity.device === timeline.device && timeline.scaledSeries === timeline.series ? capacity : null;
}

/* Finds for each column of pixels the highest edited figures, and returns the height that the plot needs; `top`:
 * without them. */
function measureEdited(timeline, top) {
  const edited = shownEdit(timeline), capacity = shownCapacity(timeline);
  timeline.editedColumns = null;
  if (edited) {
    const { columns, left, right } = timeline;
    const lines = { reserved: new Float64Array(columns), allocated: new Float64Array(columns) };
    let before = timeline.tickAt(timeline.coordinateAt(left));
    for (let column = 0; column < columns; column++) {
      const last = timeline.tickAt(timeline.coordinateAt(left + ((column + 1) * (right - left)) / columns));
      for (const name of ["reserved", "allocated"]) lines[name][column] = edited.highest(edited[name], before, last);
      before = last;
    }
    timeline.editedColumns = lines;
    top = highestOf(lines.reserved, top);
  }
  return capacity && capacity.bytes <= HIDDEN_ABOVE * top ? Math.max(top, capacity.bytes) : top;
}

/* The highest of the values, or `least`. Columns without a value are NaN. */
function highestOf(values, least) {
  return values.reduce((most, value) => (value > most ? value : most), least);
}

/* Draws a stepped line with a border of the paper's colour, which sets it off from what lies below it. */
function drawSteppedLine(timeline, context, values, colour, width, dash) {
  const each = (timeline.right - timeline.left) / timeline.columns;
  context.beginPath();
  values.forEach((bytes, i) => {
    if (Number.isNaN(bytes)) return;
    context.lineTo(timeline.left + i * each, timeline.y(bytes));
    context.lineTo(timeline.left + (i + 1) * each, timeline.y(bytes));
  });
  for (const [style, thickness, pattern] of [[timeline.theme.paper, width + 2, []], [colour, width, dash]]) {
    context.strokeStyle = style;
    context.lineWidth = thickness;
    context.setLineDash(pattern);
    context.stroke();
  }
}

function drawEdited(timeline, context) {
  const edited = shownEdit(timeline), lines = timeline.editedColumns;
  context.save();
  context.beginPath();
  context.rect(timeline.left, MARGIN.top, timeline.right - timeline.left, timeline.bottom - MARGIN.top + 1);
  context.clip();
  context.lineJoin = "round";
  drawCapacity(timeline, context);
  if (edited && edited.isCaching) drawSteppedLine(timeline, context, lines.allocated, timeline.theme.edited, 1, [2, 2]);
  if (edited) drawSteppedLine(timeline, context, lines.reserved, timeline.theme.edited, 2, []);
  context.restore();
  placeCapacityLabel(timeline);
  if (edited) placeEditedLabel(timeline, edited, lines);
}

function drawCapacity(timeline, context) {
  const capacity = shownCapacity(timeline);
  if (!capacity || capacity.bytes > timeline.top) return;
  const y = Math.round(timeline.y(capacity.bytes));
  context.fillStyle = timeline.theme.paper;
  context.fillRect(timeline.left, y - 2, timeline.right - timeline.left, 4);
  context.fillStyle = timeline.theme.alarm;
  context.fillRect(timeline.left, y - 1, timeline.right - timeline.left, 2);
}

function placeCapacityLabel(timeline) {
  const capacity = shownCapacity(timeline);
  if (!capacity) return;
  const { bytes, text } = capacity, { theme } = timeline;
  const isAbove = bytes > timeline.top;
  const shown = `${isAbove ? "↑ " : ""}${text} ${size(bytes)}`;
  const style = { font: `bold 11px ${theme.font}`, colour: theme.alarm, background: theme.paper };
  const width = timeline.texts.width(shown, style.font);
  const y = isAbove ? MARGIN.top + LINE / 2 : timeline.y(bytes);
  const starts = [timeline.right - 6 - width, timeline.left + 6, (timeline.left + timeline.right - width) / 2];
  const candidates = [-10, 10, -10 - LINE, 10 + LINE].flatMap((by) =>
    starts.map((x) => ({ x, y: isAbove ? y : y + by })));
  timeline.texts.place("capacity", shown, candidates, style, timeline.plotBounds());
}

/* At the first column that has the highest figure of those in view. */
function placeEditedLabel(timeline, edited, lines) {
  const most = highestOf(lines.reserved, 0);
  const column = lines.reserved.indexOf(most);
  const x = timeline.left + ((column + 0.5) * (timeline.right - timeline.left)) / timeline.columns;
  const text = `with the change: ${edited.isCaching ? "reserved " : ""}${size(most)}`;
  timeline.marks.edited = { x, y: timeline.y(most), bytes: most };
  timeline.placeMarkLabel("edited", text, x, timeline.y(most) + 10, timeline.theme.edited);
}

/* What the tooltip of a tick says about the change. */
function editedTooltip(page, tick) {
  const edited = shownEdit(page.timeline);
  const i = edited ? edited.pointAt(tick) : -1;
  if (i < 0) return [];
  const most = edited.isExact ? "" : "at most ";
  const figures = edited.isCaching ? `${size(edited.reserved[i])} reserved, ${size(edited.allocated[i])} allocated`
    : size(edited.allocated[i]);
  return [make("div", "edited", `With the change: ${most}${figures}`)];
}
