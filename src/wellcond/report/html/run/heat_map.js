"use strict";

/** Viridis: even to the eye, also without color and for color-blind readers. */
const VIRIDIS = ["#440154", "#472d7b", "#3b528b", "#2c728e", "#21918c", "#28ae80", "#5ec962", "#addc30", "#fde725"];
const PALETTE = (() => {
  const stops = VIRIDIS.map((hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)));
  return Array.from({ length: 256 }, (_, i) => {
    const place = (i / 255) * (stops.length - 1);
    const [low, high] = [stops[Math.floor(place)], stops[Math.ceil(place)]];
    return low.map((value, channel) => Math.round(value + (high[channel] - value) * (place % 1)));
  });
})();
const ABSENT = 0, NOT_FINITE = 1, NOT_POSITIVE = 2, LOWEST = 3, HIGHEST = 65535;

/** A grid of codes (see wellcond.report.thinning.Grid) as numbers. */
class Grid {
  constructor({ columns, last, low, high, isLog, rows }, base64) {
    const bytes = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
    Object.assign(this, { columns, last, low, high, isLog, rows, codes: new Uint16Array(bytes.buffer) });
  }

  code(row, column) { return this.codes[row * this.columns.length + column]; }

  /** The number of a code; null if nothing was measured, NaN if it was not finite. */
  value(code) {
    if (code === ABSENT) return null;
    if (code === NOT_FINITE) return NaN;
    if (code === NOT_POSITIVE) return 0;
    const share = (code - LOWEST) / (HIGHEST - LOWEST);
    return this.isLog ? this.low * (this.high / this.low) ** share : this.low + share * (this.high - this.low);
  }
}

/** Layers × steps. `names` and `colors` have one entry per row of the grid. */
class HeatMap extends Chart {
  constructor(host, { grid, names, colors, title, onPick, height, onRows }) {
    super(host, { height, label: `${title} of ${names.length} layers over steps. Arrow keys move, Enter opens the layer.` });
    Object.assign(this, { grid, names, colors, title, onRows, first: 0, count: names.length });
    this.onPick = (cursor) => cursor && onPick(cursor.row);
  }

  margins() { return { left: clamp(this.width * 0.22, 84, 190), right: 10, top: 6, bottom: 26 }; }

  /** Show half or twice the rows, around the cursor or the middle. */
  zoomRows(factor) {
    const middle = this.cursor?.row ?? this.first + this.count / 2;
    this.count = clamp(Math.round(this.count * factor), Math.min(8, this.names.length), this.names.length);
    this.moveRows(Math.round(middle - this.count / 2) - this.first);
  }

  moveRows(by) {
    this.first = clamp(this.first + by, 0, this.names.length - this.count);
    this.onRows?.(this);
    this.redraw();
  }

  get rowHeight() { return (this.plot.bottom - this.plot.top) / this.count; }
  y(row) { return this.plot.top + (row - this.first) * this.rowHeight; }

  draw() {
    const { context, plot, grid } = this;
    context.clearRect(0, 0, this.width, this.height);
    const [wide, high] = [Math.floor(plot.right - plot.left), Math.floor(plot.bottom - plot.top)];
    if (wide < 1 || high < 1) return;
    const image = new ImageData(wide, high);
    const cells = new Uint32Array(image.data.buffer); // ABGR
    const special = { [NOT_FINITE]: packed(tone("not-finite")), [NOT_POSITIVE]: packed(tone("zero")) };
    const columnAt = Int32Array.from({ length: wide }, (_, x) => {
      const step = this.stepAt(plot.left + x + 0.5);
      return step > grid.last && grid.last > grid.columns[0] ? -1 : placeOf(grid.columns, step);
    });
    const colors = new Uint32Array(grid.columns.length);
    let rowsBefore = "";
    for (let y = 0; y < high; y++) {
      const from = Math.floor(this.first + (y * this.count) / high);
      const to = Math.max(Math.ceil(this.first + ((y + 1) * this.count) / high), from + 1);
      if (rowsBefore !== `${from} ${to}`) {
        rowsBefore = `${from} ${to}`;
        for (let column = 0; column < colors.length; column++) {
          let code = ABSENT; // of many layers in one line of pixels the largest is shown, and NaN before all
          for (let row = from; row < Math.min(to, this.names.length) && code !== NOT_FINITE; row++) {
            const each = grid.code(row, column);
            code = each === NOT_FINITE ? each : Math.max(code, each);
          }
          colors[column] = code === ABSENT ? 0 : special[code] ?? PALETTE_ABGR[(code - LOWEST) >> 8];
        }
      }
      for (let x = 0; x < wide; x++) cells[y * wide + x] = columnAt[x] < 0 ? 0 : colors[columnAt[x]];
    }
    const layer = new OffscreenCanvas(wide, high);
    layer.getContext("2d").putImageData(image, 0, 0);
    context.fillStyle = tone("raised");
    context.fillRect(plot.left, plot.top, wide, high);
    context.imageSmoothingEnabled = false;
    context.drawImage(layer, plot.left, plot.top);
    this.drawNames();
    this.drawSteps();
    this.drawDrag();
    this.drawCursor();
  }

  drawNames() {
    const { context, plot } = this;
    const stride = Math.max(1, Math.ceil(13 / this.rowHeight));
    context.textBaseline = "middle";
    context.textAlign = "right";
    for (let row = this.first; row < this.first + this.count; row += stride) {
      context.fillStyle = tone(this.colors[row] || "muted");
      context.fillText(fitted(context, this.names[row], plot.left - 12), plot.left - 6, this.y(row + Math.min(stride, 1) / 2));
    }
    context.textAlign = "left";
  }

  drawCursor() {
    if (this.cursor === null) return;
    const { context, plot, grid } = this;
    const { row, column } = this.cursor;
    const [left, right] = [grid.columns[column], grid.columns[column + 1] ?? grid.last].map((step) => this.x(step));
    context.strokeStyle = tone("ink");
    context.lineWidth = 1.5;
    const height = Math.max(this.rowHeight, 3);
    context.strokeRect(clamp(left, plot.left, plot.right), this.y(row), Math.max(right - left, 3), height);
  }

  cursorAt({ x, y }) {
    const { left, top, bottom } = this.plot;
    if (y < top || y >= bottom) return null;
    const row = Math.min(this.first + Math.floor((y - top) / this.rowHeight), this.names.length - 1);
    return { row, column: Math.max(placeOf(this.grid.columns, this.stepAt(Math.max(x, left))), 0) };
  }

  cursorPlace() {
    return { x: this.x(this.grid.columns[this.cursor.column]), y: this.y(this.cursor.row + 0.5) };
  }

  cursorLines() {
    const { grid, cursor: { row, column } } = this;
    const [start, next] = [grid.columns[column], grid.columns[column + 1]];
    const end = next === undefined ? grid.last : next - 1;
    const value = grid.value(grid.code(row, column));
    return [
      [element("b", {}, this.names[row])],
      [end > start ? `steps ${wholeNumber(start)} to ${wholeNumber(end)}` : `step ${wholeNumber(start)}`],
      [`${this.title} `, element("b", {}, value === null ? "not measured" : number(value))],
    ];
  }

  onKey(key) {
    const { columns } = this.grid;
    const moves = {
      ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1],
      PageUp: [-this.count, 0], PageDown: [this.count, 0],
      Home: [0, -columns.length], End: [0, columns.length],
    };
    if (key === "Escape") view.show(null);
    else if (key === "+" || key === "-") this.zoomRows(key === "+" ? 0.5 : 2);
    else if (key === "Enter" && this.cursor) this.onPick(this.cursor);
    else if (key in moves) {
      const { row, column } = this.cursor ?? { row: this.first, column: 0 };
      const [down, right] = this.cursor === null ? [0, 0] : moves[key];
      const cursor = {
        row: clamp(row + down, 0, this.names.length - 1),
        column: clamp(column + right, 0, columns.length - 1),
      };
      if (cursor.row < this.first || cursor.row >= this.first + this.count) {
        this.moveRows(cursor.row < this.first ? cursor.row - this.first : cursor.row - this.first - this.count + 1);
      }
      this.setCursor(cursor);
    } else return false;
    return true;
  }
}

/** A computed CSS color, `rgb(…)`, as a little-endian pixel. */
function packed(color) {
  const [red, green, blue] = color.match(/\d+/g).map(Number);
  return ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
}

const PALETTE_ABGR = PALETTE.map(([red, green, blue]) => ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0);

/** The end of a name, which distinguishes it from its neighbors, as far as it fits. */
function fitted(context, name, width) {
  if (context.measureText(name).width <= width) return name;
  let length = name.length;
  while (length > 1 && context.measureText("…" + name.slice(-length)).width > width) length = Math.min(length - 1, Math.floor(length * 0.9));
  return "…" + name.slice(-length);
}
