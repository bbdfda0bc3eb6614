/* dom.js - short ways to find and to make elements. */

function find(id) {
  return document.getElementById(id);
}

/* An element with a class, and with text or children. Text is never parsed as HTML. */
function make(tag, className, ...inside) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.append(...inside);
  return element;
}

function makeButton(className, ...inside) {
  const button = make("button", className, ...inside);
  button.type = "button";
  return button;
}

/* A name that the program chose, isolated from the direction of the text around it. */
function bdi(text, className) {
  return make("bdi", className, text);
}

/* The coloured square with the category's letter. */
function swatch(category) {
  const mark = make("span", "swatch", LETTERS[category]);
  mark.dataset.category = CATEGORIES[category];
  mark.setAttribute("aria-hidden", "true");
  return mark;
}

/* What of a category has a kind: "of it Bucket 40 MiB". `bytes`: by the names of kinds. Nothing if no byte has one. */
function makeKinds(category, bytes) {
  return KINDS.filter((kind) => kind && kind[1] === category && bytes[kind[0]]).map(([name]) => {
    const part = make("span", "kind", `${name} ${size(bytes[name])}`);
    Object.assign(part.dataset, { kind: name, bytes: bytes[name] });
    return part;
  });
}
