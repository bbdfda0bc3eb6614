/* stacks.js - the lines and operators that made blocks, by the numbers of their stacks. Texts are as they are in the
 * capture; what shows them cleans them. */

const LOST_STACK = 1; /* of blocks that were made when the table of stacks was full */

/* What is known about a block's stack. `frames`: innermost first, {file, shown, function, line}; `shown` is the file's
 * name without the folder in which the page was made. A line of 0 is not known. */
class Place {
  constructor(frames, operator, node, isLost) {
    const [first] = frames;
    Object.assign(this, { frames, operator, node, isLost, file: first?.file ?? null, function: first?.function ?? null,
      line: first?.line || null });
  }

  /* "train.py:41": the file without its folders. */
  get short() {
    return this.frames.length ? `${this.frames[0].file.split("/").pop()}:${this.line ?? "?"}` : "";
  }

  /* What distinguishes lines. */
  get key() {
    return this.frames.length ? `${this.file}:${this.line ?? "?"} in ${this.function}` : this.describe();
  }

  /* "train.py:41 in forward" */
  describe() {
    if (this.isLost) return "(line lost: the table of lines was full)";
    return this.frames.length ? describeFrame(this.frames[0]) : this.node ? "(no Python line)" : "(line not known)";
  }
}

function describeFrame({ shown, function: name, line }) {
  return `${shown}:${line || "?"} in ${name}`;
}

class Stacks {
  /* `table`: the metadata's "stacks", or null if no stack is known. */
  constructor(table) {
    this.table = table;
    this.places = new Map([[LOST_STACK, new Place([], null, null, true)]]);
    this.unknown = new Place([], null, null, false);
  }

  /* Whether some block's line, node or operator is known. */
  get areKnown() {
    return this.table !== null;
  }

  /* Whether more than the innermost frame is known of some stack. */
  get haveFramesAbove() {
    return (this.anyAbove ??= this.areKnown && Object.values(this.table.rows).some((row) => row.frames.length > 1));
  }

  /* The place of a stack; one without frames, operator and node if it is not known. */
  place(number) {
    let place = this.places.get(number);
    if (!place) {
      const row = this.table?.rows[number];
      place = row ? this.read(row) : this.unknown;
      this.places.set(number, place);
    }
    return place;
  }

  read({ frames, operator, node }) {
    const { files, functions, operators, folder } = this.table;
    const read = frames.map(([file, name, line]) => {
      const shown = folder && files[file].startsWith(folder) ? files[file].slice(folder.length) : files[file];
      return { file: files[file], shown, function: functions[name], line };
    });
    return new Place(read, operators[operator] ?? null, operators[node] ?? null, false);
  }

  /* The source text around a line: {note, lines: [[number, text], ...]}. The note says why there is no text, or is
   * null. */
  source({ file, line }, around = 3) {
    const source = this.table?.sources[this.table.files.indexOf(file)];
    const lines = [];
    for (let number = line - around; source && line && number <= line + around; number++)
      if (number in source.lines) lines.push([number, source.lines[number]]);
    return { note: source?.note ?? (lines.length ? null : "source not found"), lines };
  }
}
