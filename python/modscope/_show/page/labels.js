/* labels.js - the texts of the timeline, laid out so that no two overlap.
 *
 * Texts are placed in the order of their importance and drawn at the end, above the plot. A text that finds no room is
 * left out. */

const LINE = 16; /* height of a label in pixels */

function intersects(a, b) {
  return a.x < b.x + b.width && b.x < a.x + a.width && a.y < b.y + b.height && b.y < a.y + a.height;
}

class Labels {
  constructor(context) {
    this.context = context;
    this.placed = []; /* {kind, text, x, y, width, height}, with x and y at the upper left corner */
  }

  width(text, font) {
    this.context.font = font;
    return this.context.measureText(text).width;
  }

  /* Keeps a rectangle free of labels. */
  keepFree(kind, x, y, width, height) {
    this.placed.push({ kind, text: "", x, y, width, height });
  }

  /* Places a text at the first of the candidates where it overlaps nothing; returns whether there was one. A candidate
   * is {x, y}: the left end and the vertical middle of the text. `style`: font, colour, and background if it has one.
    * */
  place(kind, text, candidates, style, bounds = null) {
    const width = this.width(text, style.font);
    const isFree = (box) => !this.placed.some((other) => intersects(box, other));
    const isInside = (box) => !bounds || (box.x >= bounds.left && box.x + width <= bounds.right &&
      box.y >= bounds.top && box.y + LINE <= bounds.bottom);
    const boxes = candidates.map(({ x, y }) => ({ kind, text, style, x, y: y - LINE / 2, width, height: LINE }));
    const box = boxes.find((each) => isInside(each) && isFree(each));
    if (box) this.placed.push(box);
    return box !== undefined;
  }

  /* Places a text that is turned by 90 degrees in the middle of a rectangle, if it fits and overlaps nothing. */
  placeVertical(kind, text, { x, y, width, height }, style) {
    const length = this.width(text, style.font);
    const box = { kind, text, style, isVertical: true, x: x + (width - LINE) / 2, y: y + (height - length) / 2,
      width: LINE, height: length };
    if (length <= height && !this.placed.some((other) => intersects(box, other))) this.placed.push(box);
  }

  draw() {
    const { context } = this;
    context.save();
    context.textBaseline = "middle";
    context.textAlign = "left";
    for (const { text, style, x, y, width, height, isVertical } of this.placed) {
      if (!text) continue;
      context.font = style.font;
      if (style.background) {
        context.globalAlpha = 0.85;
        context.fillStyle = style.background;
        context.fillRect(x - 2, y, width + 4, height);
        context.globalAlpha = 1;
      }
      context.fillStyle = style.colour;
      if (isVertical) this.drawVertical(text, x + width / 2, y + height);
      else context.fillText(text, x, y + height / 2);
    }
    context.restore();
  }

  drawVertical(text, x, bottom) {
    const { context } = this;
    context.save();
    context.translate(x, bottom);
    context.rotate(-Math.PI / 2);
    context.fillText(text, 0, 0);
    context.restore();
  }
}
