// The text, one element a token; only what changes is touched.

import { N_SHADES } from "./colors.js";

const MARGIN = 24; // pixels, between the token chosen and the frame

export class TextView {
  #list;
  #tokens = [];
  #levels = [];
  #chosen = null;

  constructor(list, onPick) {
    this.#list = list;
    list.addEventListener("click", (event) => {
      const token = event.target.closest(".token");
      if (token) onPick(Number(token.id.slice("token-".length)));
    });
  }

  show(text) {
    this.#chosen = null;
    this.#levels = [];
    this.#tokens = text.pieces.map(tokenElement);
    let start = 0;
    const sequences = text.lengths.map((length, i) => {
      const group = sequenceElement(i);
      group.append(...this.#tokens.slice(start, (start += length)));
      return group;
    });
    this.#list.replaceChildren(...sequences);
  }

  // Shades by the levels of all tokens, from `low` to `high`; none without levels.
  colour(levels, low, high) {
    const scale = (N_SHADES - 1) / (high - low || 1);
    this.#tokens.forEach((token, i) => {
      const level = levels
        ? Math.round(Math.min(Math.max(levels[i] - low, 0), high - low) * scale)
        : -1;
      if (this.#levels[i] === level) return;
      this.#levels[i] = level;
      token.className = level < 0 ? "token" : `token shade-${level}`;
    });
  }

  choose(index) {
    const token = this.#tokens[index];
    this.#chosen?.setAttribute("aria-selected", "false");
    token.setAttribute("aria-selected", "true");
    this.#chosen = token;
    this.#list.setAttribute("aria-activedescendant", token.id);
    scrollTo(this.#list, token);
  }
}

function tokenElement(piece, i) {
  const token = document.createElement("span");
  token.className = "token";
  token.id = `token-${i}`;
  token.setAttribute("role", "option");
  token.setAttribute("aria-selected", "false");
  token.textContent = piece.replaceAll("\n", "↵\n") || "∅";
  return token;
}

function sequenceElement(i) {
  const group = document.createElement("div");
  group.className = "sequence";
  group.setAttribute("role", "group");
  group.setAttribute("aria-label", `sequence ${i + 1}`);
  return group;
}

// Inside the list alone: the page stays where it is.
function scrollTo(list, token) {
  const { top, bottom } = token.getBoundingClientRect();
  const frame = list.getBoundingClientRect();
  if (top < frame.top) list.scrollTop -= frame.top - top + MARGIN;
  else if (bottom > frame.bottom) list.scrollTop += bottom - frame.bottom + MARGIN;
}
