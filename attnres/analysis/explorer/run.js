// A run of the page's data: its weights unpacked when they are first asked for.

export function loadRuns(data) {
  return data.runs.map((plain) => new Run(plain, data.texts[plain.text]));
}

export class Run {
  #weights = null; // 16 bits each, by reader, then source, then token
  #means = new Map();

  constructor(plain, text) {
    Object.assign(this, plain); // name, residual, readers, sources, columns, mixing, effects, ...
    this.text = text;
    this.nTokens = text.pieces.length;
    this.largestEffect = largest(plain.effects?.sources?.flat() ?? []);
    this.starts = offsets(this.sources);
    this.places = this.sources.map((named) => new Map(named.map(([name], i) => [name, i])));
  }

  get hasWeights() {
    return this.weights !== null;
  }

  // The packed weights of all tokens, and the weight that one of them stands for.
  packed(reader, source) {
    this.#weights ??= unpack(this.weights.data);
    const start = (this.starts[reader] + source) * this.nTokens;
    return this.#weights.subarray(start, start + this.nTokens);
  }

  unpacked(level) {
    const { low, high } = this.weights;
    return low + ((high - low) * level) / 65535;
  }

  weight(reader, source, token) {
    return this.unpacked(this.packed(reader, source)[token]);
  }

  // Over all tokens; without depth weights the entry of the mixing matrix.
  mean(reader, source) {
    if (!this.hasWeights) return this.mixing?.[reader][source] ?? NaN;
    const key = this.starts[reader] + source;
    if (!this.#means.has(key)) {
      const sum = this.packed(reader, source).reduce((total, level) => total + level, 0);
      this.#means.set(key, this.unpacked(sum / this.nTokens));
    }
    return this.#means.get(key);
  }

  // Loss without a source of a reader, less the loss; NaN where that was not measured.
  effect(reader, source) {
    return this.effects?.sources?.[reader][source] ?? NaN;
  }

  // The source of a reader that a column stands for; undefined where it has none.
  sourceAt(reader, column) {
    return this.places[reader].get(this.columns[column]);
  }
}

// By size; what is not a number counts as zero.
export function largest(values) {
  return values.reduce((most, x) => Math.max(most, Math.abs(x || 0)), 0);
}

function offsets(sources) {
  let total = 0;
  return sources.map((row) => (total += row.length) - row.length);
}

function unpack(base64) {
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return new Uint16Array(bytes.buffer); // little-endian, as every browser is
}
