// What is chosen, and which parts of the page that changes.

import { N_SHADES, palettes } from "./colors.js";
import { fromAddress, keepInAddress } from "./address.js";
import { effectGrid, weightGrid } from "./grids.js";
import { HeatMap, clamp } from "./heat_map.js";
import { MixingView } from "./mixing_view.js";
import { loadRuns } from "./run.js";
import { SourceTable, nats, share } from "./source_table.js";
import { TextView } from "./text_view.js";

const byId = (id) => document.getElementById(id);
const runs = loadRuns(JSON.parse(byId("data").textContent));
const dark = matchMedia("(prefers-color-scheme: dark)");
const QUIET_MS = 250; // after the last key: then what is chosen is said, and goes into the address

let palette = null;
let shown = {}; // what the page shows
let asked = 0; // the frame asked for, 0 without one
let quiet = 0; // the timer of QUIET_MS
const state = { run: 0, reader: 0, source: 0, token: 0, output: 0, range: "largest" };

const text = new TextView(byId("text"), (token) => choose({ token }));
const table = new SourceTable(
  byId("sources"),
  (source) => choose({ source }, true),
  (step) => choose({ source: state.source + step }, true),
);
const weightMap = new HeatMap(byId("readers"), pickCell);
const effectMap = new HeatMap(byId("readers"), pickCell);
const mixing = new MixingView(byId("mixing"), runs, (reader, output) => choose({ reader, output }));

start();

function start() {
  fill(
    byId("run"),
    runs.map((run) => `${run.name} (${run.residual})`),
  );
  for (const name of ["run", "reader", "source"]) {
    byId(name).addEventListener("change", (event) =>
      choose({ [name]: event.target.selectedIndex }),
    );
  }
  byId("range").addEventListener("change", (event) => choose({ range: event.target.value }));
  byId("text").addEventListener("keydown", moveByKey);
  dark.addEventListener("change", () => {
    shown = {};
    ask();
  });
  window.addEventListener("hashchange", () => choose(fromAddress(runs, state)));
  const first = Math.max(
    runs.findIndex((run) => run.hasWeights),
    0,
  );
  choose({ run: first, reader: runs[first].readers.length - 1 });
  choose(fromAddress(runs, state));
}

// Change what is chosen; a source goes along by its name where the reader is another.
function choose(changes, focuses = false) {
  const name = runs[state.run].sources[state.reader]?.[state.source]?.[0];
  Object.assign(state, changes);
  state.run = clamp(state.run, runs.length);
  const run = runs[state.run];
  state.reader = clamp(state.reader, run.readers.length);
  state.token = clamp(state.token, run.nTokens);
  const same =
    changes.source === undefined
      ? run.sources[state.reader].findIndex(([each]) => each === name)
      : -1;
  state.source = clamp(same < 0 ? state.source : same, run.sources[state.reader].length);
  ask();
  if (focuses) requestAnimationFrame(() => table.focus(state.source));
}

function ask() {
  asked ||= requestAnimationFrame(render);
}

function render() {
  asked = 0;
  const run = runs[state.run];
  const differs = (...names) => names.some((name) => state[name] !== shown[name]);
  if (shown.run === undefined) recolour();
  if (differs("run")) showRun(run);
  if (differs("run", "reader")) showReader(run);
  if (differs("run", "reader", "source", "range")) colourText(run);
  if (differs("run", "token")) text.choose(state.token);
  if (differs("run", "token") && run.hasWeights)
    weightMap.draw(...weightGrid(run, state.token, palette));
  table.show(run, state.reader, state.source, run.hasWeights ? state.token : null);
  const column = run.columns.indexOf(run.sources[state.reader][state.source][0]);
  if (run.hasWeights) weightMap.mark(state.reader, column);
  if (run.effects?.sources) effectMap.mark(state.reader, column);
  mixing.mark(runs, state.run, state.reader, state.output);
  byId("run").selectedIndex = state.run;
  byId("reader").selectedIndex = state.reader;
  byId("source").selectedIndex = state.source;
  byId("range").value = state.range;
  shown = { ...state };
  clearTimeout(quiet);
  quiet = setTimeout(say, QUIET_MS);
}

// The colours of this theme, for all that is drawn with them.
function recolour() {
  palette = palettes(dark.matches ? "dark" : "light");
  const rules = palette.positive.map(
    ({ fill, ink }, i) => `.shade-${i} { background: ${fill}; color: ${ink}; }`,
  );
  byId("shades").textContent = rules.join("\n");
  mixing.draw(runs, palette);
}

function showRun(run) {
  if (run.text !== runs[shown.run]?.text) text.show(run.text);
  fill(
    byId("reader"),
    run.readers.map((name, i) => (i < run.readers.length - 1 ? `${i}: ${name}` : name)),
  );
  byId("weight-title").textContent = run.hasWeights ? "Weight" : "Weight in the mixing matrix";
  weightMap.figure.hidden = !run.hasWeights;
  effectMap.figure.hidden = !run.effects?.sources;
  if (run.effects?.sources) effectMap.draw(...effectGrid(run, palette));
}

function showReader(run) {
  fill(
    byId("source"),
    run.sources[state.reader].map(([name, meaning]) => `${name}: ${meaning}`),
  );
  byId("sources-note").textContent = noteOn(run);
}

function noteOn(run) {
  const layer = Math.floor(state.reader / 2);
  const effect = run.effects?.layers?.[layer];
  const before =
    `Read before ${run.readers[state.reader]}. ` +
    "Bars: share of the longest; mean and loss: of the whole text.";
  const untrained = run.isUntrained ? " Its queries are zero: all sources weigh the same." : "";
  const measured = run.effects ? "" : " No loss was measured: attnres ablate does that.";
  const whole =
    effect === undefined
      ? ""
      : ` Without layer ${layer} the loss gains ${nats(effect)} nats a token.`;
  return before + whole + untrained + measured;
}

function colourText(run) {
  if (!run.hasWeights) {
    text.colour(null);
    byId("legend").textContent =
      `${run.name} has no depth weights a token: the table shows its mixing matrix.`;
    return;
  }
  const levels = run.packed(state.reader, state.source);
  const zero = (65535 * -run.weights.low) / (run.weights.high - run.weights.low);
  const low = state.range === "spread" ? levels.reduce((a, b) => Math.min(a, b)) : zero;
  const high = state.range === "all" ? 65535 : levels.reduce((a, b) => Math.max(a, b));
  text.colour(levels, low, high);
  const [name] = run.sources[state.reader][state.source];
  byId("legend").replaceChildren(
    `Weight of ${name} before ${run.readers[state.reader]}: ${share(run.unpacked(low))} `,
    ...swatches(),
    ` ${share(run.unpacked(high))}. From ${run.text.source}.`,
  );
}

function swatches() {
  return [0, 9, 18, 27, 36, 45, 54, N_SHADES - 1].map((shade) => {
    const swatch = document.createElement("span");
    swatch.className = `swatch shade-${shade}`;
    return swatch;
  });
}

// In a map of readers by sources; a reader that has no such source keeps the one it had.
function pickCell(reader, column) {
  const source = runs[state.run].sourceAt(reader, column);
  choose(source === undefined ? { reader } : { reader, source });
}

function moveByKey(event) {
  if (event.altKey || event.ctrlKey || event.metaKey) return;
  const { token, reader, source } = state;
  const step = event.shiftKey ? 10 : 1;
  const changes = {
    ArrowLeft: { token: token - step },
    ArrowRight: { token: token + step },
    ArrowUp: { reader: reader - 1 },
    ArrowDown: { reader: reader + 1 },
    PageUp: { source: source - 1 },
    PageDown: { source: source + 1 },
    Home: { token: 0 },
    End: { token: Infinity },
  }[event.key];
  if (!changes) return;
  event.preventDefault();
  choose(changes);
}

function say() {
  const run = runs[state.run];
  const { reader, source, token } = state;
  const [name, meaning] = run.sources[reader][source];
  const weight = run.hasWeights ? run.weight(reader, source, token) : run.mean(reader, source);
  const piece = JSON.stringify(run.text.pieces[token]);
  const place = `Token ${token + 1} of ${run.nTokens}, ${piece}: before ${run.readers[reader]}`;
  byId("said").textContent = `${place}, ${name} (${meaning}) weighs ${share(weight)}.`;
  keepInAddress(runs, state);
}

function fill(select, names) {
  select.replaceChildren(...names.map((name) => new Option(name)));
}
