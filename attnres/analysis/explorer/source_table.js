// The sources of one reader for one token: weight, its mean over tokens, loss without it.

import { largest } from "./run.js";

export class SourceTable {
  #body;
  #onPick;
  #rows = [];

  // `onPick` is told of a source, `onStep` of a step up or down from the one that is chosen.
  constructor(table, onPick, onStep) {
    this.#body = table.tBodies[0];
    this.#onPick = onPick;
    this.#body.addEventListener("keydown", (event) => {
      const step = { ArrowUp: -1, ArrowDown: 1 }[event.key];
      if (!step) return;
      event.preventDefault();
      onStep(step);
    });
  }

  // `token` may be null: then the mean stands for the weight.
  show(run, reader, chosen, token) {
    const sources = run.sources[reader];
    this.#fit(sources.length);
    const means = sources.map((_, i) => run.mean(reader, i));
    const weights = token === null ? means : sources.map((_, i) => run.weight(reader, i, token));
    const effects = sources.map((_, i) => run.effect(reader, i));
    const longest = {
      weight: largest(weights.concat(means)),
      effect: run.largestEffect,
    };
    this.#rows.forEach((cells, i) => {
      const [name, meaning] = sources[i];
      setText(cells.button, name);
      setText(cells.meaning, meaning);
      cells.weight.show(weights[i], longest.weight, share(weights[i]));
      setText(cells.mean, share(means[i]));
      cells.effect.show(effects[i], longest.effect, nats(effects[i]));
      cells.row.className = i === chosen ? "chosen" : "";
      cells.button.tabIndex = i === chosen ? 0 : -1;
      cells.button.setAttribute("aria-pressed", String(i === chosen));
    });
  }

  focus(source) {
    this.#rows[source].button.focus();
  }

  #fit(n) {
    while (this.#rows.length > n) this.#rows.pop().row.remove();
    while (this.#rows.length < n) this.#rows.push(this.#add(this.#rows.length));
  }

  #add(i) {
    const row = this.#body.insertRow();
    const head = row.appendChild(document.createElement("th"));
    head.scope = "row";
    const button = head.appendChild(document.createElement("button"));
    button.type = "button";
    const cells = [0, 1, 2, 3].map(() => row.insertCell());
    cells[2].className = "number";
    row.addEventListener("click", () => this.#onPick(i));
    return {
      row,
      button,
      meaning: cells[0],
      weight: new Bar(cells[1]),
      mean: cells[2],
      effect: new Bar(cells[3]),
    };
  }
}

class Bar {
  constructor(cell) {
    const holder = cell.appendChild(document.createElement("div"));
    holder.className = "bar";
    this.number = holder.appendChild(document.createElement("span"));
    this.fill = holder
      .appendChild(document.createElement("div"))
      .appendChild(document.createElement("div"));
  }

  show(value, longest, words) {
    setText(this.number, words);
    this.fill.style.transform = `scaleX(${longest ? Math.abs(value || 0) / longest : 0})`;
    this.fill.className = value < 0 ? "negative" : "";
  }
}

export function share(value) {
  return Number.isNaN(value) ? "–" : minus(value.toFixed(3));
}

export function nats(value) {
  return Number.isNaN(value) ? "–" : minus((value < 0 ? "" : "+") + value.toFixed(4));
}

function minus(text) {
  return text.replace("-", "−");
}

function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}
