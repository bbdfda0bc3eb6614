/* layout.js - where the blocks of a device are: the columns that Stream.layout gives, and the segments of a moment. */

const UNIT = 512;
const TAKEN = 0, GIVEN_BACK = 1, PAGES_MAPPED = 2; /* of ms_segment_change */

class Layout {
  constructor(capture, device, bytes) {
    const columns = new Columns(bytes);
    this.capture = capture;
    this.device = device;
    this.address = columns.next(Float64Array); /* by block; -1: it has no memory */
    for (let i = 0, latest = 0; i < this.address.length; i++) {
      const code = this.address[i] - 1;
      this.address[i] = code < 0 ? -1 : (latest += code % 2 ? -(code + 1) / 2 : code / 2);
    }
    this.size = columns.next(Float64Array);
    this.changes = columns.rows(4);
    this.numberBlocks();
  }

  /* The block of each lifetime, in the order in which blocks were added, or -1. */
  numberBlocks() {
    const { begin, template, templateDevice, templateOutside, previous } = this.capture;
    let count = 0;
    this.block = new Int32Array(begin.length).fill(-1);
    for (let lifetime = 0; lifetime < begin.length; lifetime++) {
      if (templateDevice[template[lifetime]] !== this.device || templateOutside[template[lifetime]]) continue;
      const before = previous.get(lifetime);
      this.block[lifetime] = before === undefined ? count++ : this.block[lifetime - before];
    }
    if (count !== this.address.length)
      throw new Error(`the layout has ${this.address.length} blocks, and the page ${count}`);
  }

  /* What was reserved at a tick: {address, bytes}, in units. Pages that lie side by side are one segment. */
  reservedAt(tick) {
    const moment = this.capture.momentOf(tick), whole = new Map();
    let pages = [];
    for (const [number, change, address, bytes] of this.changes) {
      if (number >= moment && number > 0) break;
      if (change === TAKEN) whole.set(address, bytes);
      else if (change === GIVEN_BACK) whole.delete(address);
      else if (change === PAGES_MAPPED) pages.push({ address, bytes });
      else pages = pages.flatMap((each) => without(each, address, address + bytes));
    }
    return [...[...whole].map(([address, bytes]) => ({ address, bytes })), ...joined(pages)];
  }

  /* The segments of a tick, the largest first: {address, bytes, allocated, blocks, parts}, all but `address` in bytes.
   * Their parts follow each other: {segment, at, bytes, lifetime}, where `at` is counted from the segment's beginning;
   * the lifetime of a gap is -1. */
  at(tick) {
    const blocks = [];
    this.capture.eachHeld(tick, this.device, (lifetime) => {
      const block = this.block[lifetime];
      if (block >= 0 && this.address[block] >= 0) blocks.push({ lifetime, address: this.address[block],
        bytes: this.size[block] });
    });
    blocks.sort((a, b) => a.address - b.address);
    const starts = Float64Array.from(blocks, (block) => block.address);
    const segments = this.reservedAt(tick).sort((a, b) => b.bytes - a.bytes || a.address - b.address);
    return segments.map(({ address, bytes }) => {
      const segment = { address, bytes: bytes * UNIT, allocated: 0, blocks: 0, parts: [] };
      let end = address;
      const add = (to, lifetime) => {
        if (to > end) segment.parts.push({ segment, at: (end - address) * UNIT, bytes: (to - end) * UNIT, lifetime });
        end = Math.max(to, end);
      };
      for (let i = lastIndexUpTo(starts, address - 1) + 1; i < blocks.length && starts[i] < address + bytes; i++) {
        add(starts[i], -1);
        add(starts[i] + blocks[i].bytes, blocks[i].lifetime);
        segment.allocated += blocks[i].bytes * UNIT;
        segment.blocks++;
      }
      add(address + bytes, -1);
      return segment;
    });
  }
}

/* What is left of a range without the addresses [from, to). */
function without({ address, bytes }, from, to) {
  const end = address + bytes;
  return [[address, Math.min(end, from)], [Math.max(address, to), end]].filter(([a, b]) => b > a)
    .map(([a, b]) => ({ address: a, bytes: b - a }));
}

function joined(ranges) {
  const all = [];
  for (const each of ranges.sort((a, b) => a.address - b.address)) {
    const last = all.at(-1);
    if (last && last.address + last.bytes === each.address) last.bytes += each.bytes;
    else all.push({ ...each });
  }
  return all;
}
