// What heat maps show: matrices as [title, {rows, columns, value, shade, words}].

import { shadeOf } from "./colors.js";
import { largest } from "./run.js";
import { nats, share } from "./source_table.js";

// What each read is made of, reader by output.
export function mixingGrid(run, palette) {
  const rows = readerTicks(run);
  const columns = ["emb", ...rows.slice(1).map((_, i) => String(i + 1))];
  const most = largest(run.mixing.flat());
  const value = (row, column) => run.mixing[row][column];
  const shade = (x) => shadeOf(palette, x / most);
  const words = (row, column) => {
    const found = value(row, column);
    const said = found === undefined ? "not written yet" : share(found);
    return `before ${run.readers[row]}, output ${columns[column]}: ${said}`;
  };
  const title = `${run.name}: ${run.residual}; largest ${share(most)}`;
  return [title, { rows, columns, value, shade, words }];
}

// Weights of one token, reader by source.
export function weightGrid(run, token, palette) {
  const weight = (reader, source) => run.weight(reader, source, token);
  const shade = (x) => shadeOf(palette, x / run.weights.high);
  return [`${run.name}: weights of this token`, sourceGrid(run, weight, shade, share)];
}

// Loss without each source of each reader.
export function effectGrid(run, palette) {
  const most = run.largestEffect;
  const effect = (reader, source) => run.effect(reader, source);
  const shade = (x) => shadeOf(palette, x / (most || 1));
  const title = `${run.name}: loss without the source, nats a token; largest ${nats(most)}`;
  return [title, sourceGrid(run, effect, shade, nats)];
}

function sourceGrid(run, figure, shade, form) {
  const value = (row, column) => {
    const source = run.sourceAt(row, column);
    return source === undefined ? undefined : figure(row, source);
  };
  const words = (row, column) => {
    const found = value(row, column);
    const said = found === undefined ? "none of its sources" : form(found);
    return `before ${run.readers[row]}, ${run.columns[column]}: ${said}`;
  };
  return { rows: readerTicks(run), columns: run.columns, value, shade, words };
}

function readerTicks(run) {
  return run.readers.map((_, i) => (i === run.readers.length - 1 ? "final" : String(i)));
}
