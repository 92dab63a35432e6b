// The curve of the loss as SVG, with axes that a person would choose. The table beside it says the same in numbers.

const NAMESPACE = "http://www.w3.org/2000/svg";
const HEIGHT = 240;
const MOST_POINTS = 600;
const MARGIN = { left: 52, right: 12, top: 12, bottom: 36 };

function shape(tag, attributes, text = "") {
  const made = document.createElementNS(NAMESPACE, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.textContent = text;
  return made;
}

/** Return round numbers from zero, or the round number below `low`, up to at least `high`; about `wanted` of them. */
export function ticks(low, high, wanted) {
  const rough = Math.max((high - low) / wanted, Number.MIN_VALUE);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((candidate) => candidate >= rough * 0.999);
  const first = Math.floor(low / step);
  return Array.from({ length: Math.ceil(high / step - 1e-9) - first + 1 }, (_, i) => Number(((first + i) * step).toPrecision(12)));
}

/** Draw `losses`, one per step, into `svg`: every step thin, or means of neighbours where there are many, and a running mean bold. */
export function draw(svg, losses) {
  if (!losses.length) return;
  const width = Math.max(260, svg.clientWidth);
  svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
  const points = table(losses, MOST_POINTS).map(([first, last, loss]) => [(first + last) / 2, loss]);
  const rows = ticks(0, points.reduce((most, [, loss]) => Math.max(most, loss), 1e-6), 4);
  const across = (step) => MARGIN.left + ((step - 1) / Math.max(1, losses.length - 1)) * (width - MARGIN.left - MARGIN.right);
  const up = (loss) => HEIGHT - MARGIN.bottom - (loss / rows.at(-1)) * (HEIGHT - MARGIN.top - MARGIN.bottom);
  const parts = rows.flatMap((value) => [
    shape("line", { class: "grid", x1: MARGIN.left, x2: width - MARGIN.right, y1: up(value), y2: up(value) }),
    shape("text", { x: MARGIN.left - 8, y: up(value) + 4, "text-anchor": "end" }, String(value)),
  ]);
  const steps = ticks(0, Math.max(losses.length, 2), 6).map((tick) => Math.max(1, tick));
  for (const step of steps.filter((tick) => Number.isInteger(tick) && tick <= losses.length)) {
    parts.push(shape("text", { x: across(step), y: HEIGHT - MARGIN.bottom + 18, "text-anchor": "middle" }, String(step)));
  }
  parts.push(shape("text", { x: (width + MARGIN.left) / 2, y: HEIGHT - 2, "text-anchor": "middle" }, "step"));
  const line = (kind, values) => {
    const path = values.map(([step, loss], i) => `${i ? "L" : "M"}${across(step).toFixed(1)} ${up(loss).toFixed(1)}`).join("");
    parts.push(shape("path", { class: kind, d: path }));
  };
  line("each", points);
  line("mean", averaged(points, Math.max(1, Math.round(points.length / 20))));
  if (losses.length === 1) parts.push(shape("circle", { class: "dot", cx: across(1), cy: up(losses[0]), r: 4 }));
  svg.replaceChildren(...parts);
}

/** Return the points, each being the mean of the last `width` ones. */
function averaged(points, width) {
  let sum = 0;
  return points.map(([step, loss], i) => {
    sum += loss - (i >= width ? points[i - width][1] : 0);
    return [step, sum / Math.min(i + 1, width)];
  });
}

/** Return rows [first step, last step, mean loss]: at most `most` of them. */
export function table(losses, most = 10) {
  const size = Math.ceil(losses.length / most);
  const rows = [];
  for (let start = 0; start < losses.length; start += size) {
    const part = losses.slice(start, start + size);
    rows.push([start + 1, start + part.length, part.reduce((sum, loss) => sum + loss, 0) / part.length]);
  }
  return rows;
}
