// A matrix as a picture that can have the focus. A row and a cell are marked by elements above it,
// so that to move among them draws nothing.

const LEFT = 34,
  RIGHT = 12,
  BOTTOM = 18; // pixels, of the labels
const SMALLEST = 4;
const LARGEST = 24; // pixels, of a cell
const WIDEST = 430;

export class HeatMap {
  #canvas = document.createElement("canvas");
  #plane = element("div", "plane");
  #rowMark = element("div", "mark row");
  #cellMark = element("div", "mark cell");
  #said = element("span", "said");
  #title = element("strong", "");
  #grid = null; // {rows, columns, value(row, column), shade(value), words(row, column)}
  #at = [0, 0];
  #onPick;

  constructor(parent, onPick) {
    this.#onPick = onPick;
    const figure = parent.appendChild(element("figure", "map"));
    const caption = element("figcaption", "");
    caption.append(this.#title, this.#said);
    this.#plane.append(this.#canvas, this.#rowMark, this.#cellMark);
    figure.append(caption, this.#plane);
    this.figure = figure;
    this.#plane.tabIndex = 0;
    this.#plane.setAttribute("role", "application");
    this.#plane.setAttribute("aria-roledescription", "heat map");
    this.#plane.addEventListener("keydown", (event) => this.#key(event));
    this.#plane.addEventListener("click", (event) => this.#pick(this.#cellUnder(event)));
    this.#plane.addEventListener("pointermove", (event) => this.#say(this.#cellUnder(event)));
    this.#plane.addEventListener("pointerleave", () => this.#say(this.#at));
  }

  draw(title, grid) {
    this.#grid = grid;
    this.#title.textContent = title;
    this.#plane.setAttribute("aria-label", title);
    this.size = Math.min(Math.max(Math.floor(WIDEST / grid.columns.length), SMALLEST), LARGEST);
    const width = LEFT + this.size * grid.columns.length + RIGHT;
    const height = BOTTOM + this.size * grid.rows.length;
    const context = this.#sized(width, height);
    this.#drawCells(context);
    this.#drawLabels(context);
    this.mark(...this.#at);
  }

  mark(row, column) {
    this.#at = [row, column];
    const { size } = this;
    place(this.#rowMark, LEFT, row * size, this.#grid.columns.length * size, size);
    place(this.#cellMark, LEFT + column * size - 1, row * size - 1, size + 2, size + 2);
    this.#cellMark.hidden = this.#grid.value(row, column) === undefined;
    this.#say(this.#at);
  }

  #sized(width, height) {
    const scale = window.devicePixelRatio || 1;
    Object.assign(this.#canvas, { width: width * scale, height: height * scale });
    Object.assign(this.#canvas.style, { width: `${width}px`, height: `${height}px` });
    const context = this.#canvas.getContext("2d");
    context.scale(scale, scale);
    return context;
  }

  #drawCells(context) {
    const { rows, columns, value, shade } = this.#grid;
    const hasFrames = this.size > 7;
    const side = this.size - (hasFrames ? 1 : 0);
    context.strokeStyle = colorOf("--line");
    rows.forEach((_, row) =>
      columns.forEach((_, column) => {
        const found = value(row, column);
        if (found === undefined) return;
        const place = [LEFT + column * this.size, row * this.size];
        context.fillStyle = Number.isNaN(found) ? colorOf("--none") : shade(found);
        context.fillRect(...place, side, side);
        if (hasFrames) context.strokeRect(place[0] + 0.5, place[1] + 0.5, side - 1, side - 1);
      }),
    );
  }

  #drawLabels(context) {
    const { rows, columns } = this.#grid;
    const { size } = this;
    context.fillStyle = colorOf("--soft");
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    context.textAlign = "right";
    for (const i of ticks(rows.length, 14 / size))
      context.fillText(rows[i], LEFT - 4, (i + 0.5) * size);
    context.textAlign = "center";
    const bottom = rows.length * size + BOTTOM / 2;
    for (const i of ticks(columns.length, 38 / size))
      context.fillText(columns[i], LEFT + (i + 0.5) * size, bottom);
  }

  #say([row, column]) {
    const words = this.#grid.words(row, column);
    if (this.#said.textContent !== words) this.#said.textContent = words;
  }

  #pick([row, column]) {
    this.#onPick(row, column);
  }

  #cellUnder(event) {
    const box = this.#canvas.getBoundingClientRect();
    const { rows, columns } = this.#grid;
    const row = Math.floor((event.clientY - box.top) / this.size);
    const column = Math.floor((event.clientX - box.left - LEFT) / this.size);
    return [clamp(row, rows.length), clamp(column, columns.length)];
  }

  #key(event) {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const [row, column] = this.#at;
    const last = this.#grid.columns.length;
    const to = {
      ArrowUp: [row - 1, column],
      ArrowDown: [row + 1, column],
      ArrowLeft: [row, this.#next(row, column, -1)],
      ArrowRight: [row, this.#next(row, column, 1)],
      Home: [row, this.#next(row, -1, 1)],
      End: [row, this.#next(row, last, -1)],
    }[event.key];
    if (!to) return;
    event.preventDefault();
    this.#at = [clamp(to[0], this.#grid.rows.length), to[1]]; // the next key may come before `mark`
    this.#pick(this.#at);
  }

  // The next column of a row that has a figure; where there is none, the same.
  #next(row, column, step) {
    const { columns, value } = this.#grid;
    for (let i = column + step; i >= 0 && i < columns.length; i += step) {
      if (value(row, i) !== undefined) return i;
    }
    return column;
  }
}

// Every few places, so that labels of so many cells do not touch, and the last.
function ticks(n, cells) {
  const step = Math.max(Math.ceil(cells), 1);
  const found = [];
  for (let i = 0; i < n - 1; i += step) if (n - 1 - i >= step || i === 0) found.push(i);
  return [...found, n - 1];
}

function place(mark, left, top, width, height) {
  Object.assign(mark.style, {
    left: `${left}px`,
    top: `${top}px`,
    width: `${width}px`,
    height: `${height}px`,
  });
}

function colorOf(variable) {
  return getComputedStyle(document.documentElement).getPropertyValue(variable);
}

function element(name, className) {
  const made = document.createElement(name);
  made.className = className;
  return made;
}

export function clamp(value, n) {
  return Math.min(Math.max(value, 0), n - 1);
}
