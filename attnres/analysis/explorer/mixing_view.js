// The mixing matrices of all runs side by side; a reader and an output are marked in each.

import { mixingGrid } from "./grids.js";
import { HeatMap, clamp } from "./heat_map.js";

export class MixingView {
  #panels; // one a run; null where it has no matrix

  constructor(parent, runs, onPick) {
    this.#panels = runs.map((run) => {
      if (run.mixing) return new HeatMap(parent, onPick);
      const note = parent.appendChild(document.createElement("p"));
      note.className = "note";
      note.textContent = `${run.name}: ${run.noMixing}`;
      return null;
    });
  }

  draw(runs, palette) {
    this.#panels.forEach((panel, i) => panel?.draw(...mixingGrid(runs[i], palette)));
  }

  mark(runs, chosen, reader, output) {
    this.#panels.forEach((panel, i) => {
      const n = runs[i].readers.length;
      panel?.mark(clamp(reader, n), clamp(output, n));
      panel?.figure.toggleAttribute("data-chosen", i === chosen);
    });
  }
}
