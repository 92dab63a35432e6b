// Small helpers of the page.

export const $ = (id) => document.getElementById(id);

/** Return an element with attributes and children. */
export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name in made) made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

/** Say something to everybody: it is shown, and read out when the reader is done with what it reads. */
export function say(text) {
  $("status").textContent = text;
}

/** Show what went wrong, and read it out at once; the next action hides it. */
export function problem(error) {
  const message = error ? String(error.message ?? error) : "";
  $("problem").hidden = !message;
  $("problem-text").textContent = message;
}

/** Run `action`; what it throws becomes the message. A second call meanwhile is refused. */
export function guarded(action, button = null) {
  return async (...values) => {
    problem(null);
    if (button) button.setAttribute("aria-busy", "true");
    try {
      return await action(...values);
    } catch (error) {
      problem(error);
      return undefined;
    } finally {
      button?.removeAttribute("aria-busy");
    }
  };
}

/** Return the number in a field. Throws what was expected where there is none. */
export function setting(id) {
  const field = $(id);
  if (field.checkValidity()) return field.valueAsNumber;
  field.focus();
  const whole = field.step === "any" ? "a number" : "a whole number";
  throw new Error(`${field.labels[0].textContent}: ${field.value || "nothing"}, expected ${whole} from ${field.min} to ${field.max}.`);
}

/** Hand a file to the browser's downloads. */
export function save(name, parts, type = "application/octet-stream") {
  const link = element("a", { href: URL.createObjectURL(new Blob(parts, { type })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** Return a number of bytes with a decimal unit. */
export function bytes(value) {
  if (value === null || value === undefined) return "–";
  const units = ["B", "kB", "MB", "GB"];
  const power = value < 1 ? 0 : Math.min(3, Math.floor(Math.log10(value) / 3));
  return `${digits(value / 1000 ** power)} ${units[power]}`;
}

/** Return a count with a decimal prefix. */
export function count(value) {
  const power = value < 1000 ? 0 : Math.min(3, Math.floor(Math.log10(value) / 3));
  return `${digits(value / 1000 ** power)}${["", " k", " M", " G"][power]}`;
}

/** Return three digits of a number. */
export function digits(value) {
  return Number.isInteger(value) && value < 1000 ? String(value) : Number(value.toPrecision(3)).toString();
}

/** Return a share as a percentage; only exactly 0 and 1 read 0 % and 100 %. */
export function percent(share) {
  if (share > 0 && share < 0.0005) return "<0.1 %";
  if (share < 1 && share >= 0.9995) return ">99.9 %";
  return `${(100 * share).toFixed((share > 0 && share < 0.1) || (share < 1 && share >= 0.995) ? 1 : 0)} %`;
}

/** Return a number and its noun: "1 sample", "2 samples". */
export function plural(number, noun, many = `${noun}s`) {
  return `${number.toLocaleString("en")} ${number === 1 ? noun : many}`;
}
