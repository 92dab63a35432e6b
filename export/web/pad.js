// A pad to draw on, with a pointer or with the keyboard: arrows move a square, space and delete change it.

const GROUND = "#000";
const INK = "#fff";
const CURSOR = "#f0a53a";

export class Pad {
  /** `canvas` is drawn on; `cells` is the side of the grid that the keyboard moves on; `changed` is called after every stroke. */
  constructor(canvas, cells, changed, announce) {
    Object.assign(this, { canvas, cells, changed, announce, cursor: null, empty: true });
    this.ink = new OffscreenCanvas(canvas.width, canvas.height);
    this.pen = this.ink.getContext("2d", { willReadFrequently: true });
    this.clear();
    canvas.addEventListener("pointerdown", (event) => this.down(event));
    canvas.addEventListener("pointermove", (event) => this.move(event));
    for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, () => this.up());
    canvas.addEventListener("keydown", (event) => this.key(event));
    canvas.addEventListener("focus", () => this.focused(canvas.matches(":focus-visible")));
    canvas.addEventListener("blur", () => this.focused(false));
  }

  get cell() {
    return this.canvas.width / this.cells;
  }

  clear() {
    this.empty = true;
    this.pen.fillStyle = GROUND;
    this.pen.fillRect(0, 0, this.ink.width, this.ink.height);
    this.show();
  }

  show() {
    const context = this.canvas.getContext("2d");
    context.drawImage(this.ink, 0, 0);
    if (!this.cursor) return;
    context.strokeStyle = CURSOR;
    context.lineWidth = 4;
    context.strokeRect(this.cursor.column * this.cell + 2, this.cursor.row * this.cell + 2, this.cell - 4, this.cell - 4);
  }

  place(event) {
    const box = this.canvas.getBoundingClientRect();
    return [((event.clientX - box.left) / box.width) * this.canvas.width, ((event.clientY - box.top) / box.height) * this.canvas.height];
  }

  down(event) {
    this.canvas.setPointerCapture(event.pointerId);
    this.focused(false);
    this.from = this.place(event);
    this.stroke(this.from);
  }

  move(event) {
    if (!this.from) return;
    for (const part of event.getCoalescedEvents?.() ?? [event]) this.stroke(this.place(part));
  }

  up() {
    if (!this.from) return;
    this.from = null;
    this.changed();
  }

  stroke(to) {
    Object.assign(this.pen, { strokeStyle: INK, lineWidth: this.canvas.width * 0.085, lineCap: "round", lineJoin: "round" });
    this.pen.beginPath();
    this.pen.moveTo(...this.from);
    this.pen.lineTo(...to);
    this.pen.stroke();
    this.from = to;
    this.empty = false;
    this.show();
  }

  focused(shown) {
    this.cursor = shown ? (this.cursor ?? { row: Math.floor(this.cells / 2), column: Math.floor(this.cells / 2) }) : null;
    this.show();
  }

  key(event) {
    const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    const fills = { " ": INK, Enter: INK, Backspace: GROUND, Delete: GROUND };
    if (!(event.key in moves) && !(event.key in fills)) return;
    event.preventDefault();
    this.focused(true);
    const limit = (value) => Math.min(this.cells - 1, Math.max(0, value));
    if (event.key in moves) {
      const [down, right] = moves[event.key];
      this.cursor.row = limit(this.cursor.row + down);
      this.cursor.column = limit(this.cursor.column + right);
      if (event.shiftKey) this.fill(INK);
    } else this.fill(fills[event.key]);
    this.show();
    const { row, column } = this.cursor;
    const [light] = this.pen.getImageData((column + 0.5) * this.cell, (row + 0.5) * this.cell, 1, 1).data;
    this.announce(`Row ${row + 1}, column ${column + 1} of ${this.cells}: ${light > 127 ? "ink" : "empty"}`);
  }

  fill(colour) {
    this.pen.fillStyle = colour;
    this.pen.fillRect(this.cursor.column * this.cell, this.cursor.row * this.cell, this.cell, this.cell);
    this.empty = false;
    this.changed();
  }

  /** Return the drawing as pixels, cut to its ink and centred where `fitted`, with an even margin. */
  pixels(fitted) {
    const { width, height } = this.ink;
    const all = this.pen.getImageData(0, 0, width, height);
    if (!fitted) return all;
    let [left, right, top, bottom] = [width, 0, height, 0];
    for (let i = 0; i < width * height; i++) {
      if (all.data[4 * i] < 64) continue;
      const [x, y] = [i % width, Math.floor(i / width)];
      [left, right, top, bottom] = [Math.min(left, x), Math.max(right, x + 1), Math.min(top, y), Math.max(bottom, y + 1)];
    }
    if (right <= left) return all;
    const side = Math.max(right - left, bottom - top);
    const frame = new OffscreenCanvas(side, side).getContext("2d");
    frame.fillStyle = GROUND;
    frame.fillRect(0, 0, side, side);
    frame.drawImage(this.ink, (side - right - left) / 2, (side - bottom - top) / 2);
    return frame.getImageData(0, 0, side, side);
  }
}
