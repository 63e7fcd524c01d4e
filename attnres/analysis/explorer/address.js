// The address of the page keeps what is chosen, so that it can be sent and opened again.

import { clamp } from "./heat_map.js";

export function keepInAddress(runs, { run, reader, source, token, range }) {
  const [name] = runs[run].sources[reader][source];
  const said = new URLSearchParams({ run: runs[run].name, reader, source: name, token, range });
  history.replaceState(null, "", `#${said}`);
}

// What the address says; what it does not say, or what is not there, stays as it is.
export function fromAddress(runs, state) {
  const said = new URLSearchParams(location.hash.slice(1));
  const changes = {};
  const run = runs.findIndex(({ name }) => name === said.get("run"));
  if (run >= 0) changes.run = run;
  for (const name of ["reader", "token"]) {
    if (/^\d+$/.test(said.get(name) ?? "")) changes[name] = Number(said.get(name));
  }
  const { sources } = runs[changes.run ?? state.run];
  const named = sources[clamp(changes.reader ?? state.reader, sources.length)];
  const source = named.findIndex(([name]) => name === said.get("source"));
  if (source >= 0) changes.source = source;
  if (["largest", "spread", "all"].includes(said.get("range"))) changes.range = said.get("range");
  return changes;
}
