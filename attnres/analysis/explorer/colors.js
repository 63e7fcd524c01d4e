// Colours of numbers. One hue a sign, with even steps of lightness in Oklab (bottosson.github.io),
// so that equal steps look equal, whatever colours one sees.

export const N_SHADES = 64;

const HUES = { positive: 250, negative: 55 }; // degrees: blue, orange
const RAMPS = {
  // lightness and chroma, of zero and of the largest
  light: [
    [0.985, 0],
    [0.4, 0.1],
  ],
  dark: [
    [0.25, 0.01],
    [0.88, 0.1],
  ],
};

// Shades of one sign: {fill, ink}, where ink is black or white, whichever is read more easily.
export function shades(theme, sign) {
  const [from, to] = RAMPS[theme];
  return Array.from({ length: N_SHADES }, (_, i) => {
    const share = i / (N_SHADES - 1);
    const [lightness, chroma] = from.map((x, k) => x + share * (to[k] - x));
    const rgb = fromOklch(lightness, chroma, HUES[sign]);
    return {
      fill: `rgb(${rgb.map(byteOf).join(" ")})`,
      ink: luminance(rgb) > 0.179 ? "#000" : "#fff",
    };
  });
}

// The shade of a share from -1 to 1, by the root of it where small differences shall be seen.
export function shadeOf(palette, share) {
  const root = Math.sqrt(Math.min(Math.abs(share), 1));
  return palette[share < 0 ? "negative" : "positive"][Math.round(root * (N_SHADES - 1))].fill;
}

export function palettes(theme) {
  return { positive: shades(theme, "positive"), negative: shades(theme, "negative") };
}

// Linear red, green and blue, 0 to 1.
function fromOklch(lightness, chroma, degrees) {
  const a = chroma * Math.cos((degrees * Math.PI) / 180);
  const b = chroma * Math.sin((degrees * Math.PI) / 180);
  const l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  return [
    4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
    -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s,
  ].map((x) => Math.min(Math.max(x, 0), 1));
}

// As in WCAG 2.2; above 0.179 black contrasts more than white, and either way at least 4.5 to 1.
function luminance([r, g, b]) {
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

function byteOf(linear) {
  const value = linear <= 0.0031308 ? 12.92 * linear : 1.055 * linear ** (1 / 2.4) - 0.055;
  return Math.round(255 * value);
}
