// The script of toolcrib's console: keeps parts of a page current, and forms and JSON in step. Pages work without it.
"use strict";

const base = document.body.dataset.base;

// -- live parts: the server sends the names of what changed; the page is loaded again and its live parts replaced ------

const live = () => [...document.querySelectorAll("[data-live]")];
let stale = new Set();
let loading = false;

async function refresh() {
  if (loading || document.hidden || !stale.size) return;
  loading = true;
  const topics = stale;
  stale = new Set();
  try {
    const response = await fetch(location.href, { headers: { "x-part": "live" } });
    if (response.redirected || !response.ok) return;
    const page = new DOMParser().parseFromString(await response.text(), "text/html");
    for (const part of live()) {
      const fresh = page.getElementById(part.id);
      const wanted = part.dataset.live.split(" ").some((topic) => topics.has(topic));
      if (!fresh || !wanted || part.innerHTML === fresh.innerHTML) continue;
      if (part.contains(document.activeElement) && document.activeElement.matches("input, select, textarea, button")) {
        topics.forEach((topic) => stale.add(topic));
        continue;
      }
      const open = [...part.querySelectorAll("details[open][id]")].map((one) => one.id);
      const focused = part.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
      part.replaceChildren(...fresh.childNodes);
      open.forEach((id) => document.getElementById(id)?.setAttribute("open", ""));
      if (focused) part.querySelector(`[href="${CSS.escape(focused)}"]`)?.focus();
    }
  } catch {
    // the gateway is being restarted; the stream of events connects again
  } finally {
    loading = false;
  }
}

if (live().length && "EventSource" in window && !document.querySelector(".door")) {
  const events = new EventSource(`${base}/events`);
  const topics = new Set(live().flatMap((part) => part.dataset.live.split(" ")));
  for (const topic of topics) events.addEventListener(topic, () => { stale.add(topic); refresh(); });
  document.addEventListener("visibilitychange", refresh);
  addEventListener("pagehide", () => events.close());
}

// -- keyboard: a slash goes to the first search field ------------------------------------------------------------------

document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey) return;
  if (document.activeElement?.matches("input, textarea, select")) return;
  const field = document.querySelector("input[type=search]");
  if (field) { event.preventDefault(); field.focus(); field.select(); }
});

// -- selects that apply at once ----------------------------------------------------------------------------------------

for (const chosen of document.querySelectorAll("select[data-submit]")) {
  chosen.addEventListener("change", () => chosen.form.requestSubmit());
}

// -- a tool's form and its JSON: whichever is edited, the other follows -------------------------------------------------

const call = document.querySelector("form[data-form]");
if (call) {
  const json = call.elements.arguments;
  const problem = document.getElementById("json-problem");
  const fields = [...call.querySelectorAll("[name^='arg.']")];
  const nameOf = (field) => field.name.slice("arg.".length);

  function read() {
    try {
      const value = JSON.parse(json.value || "{}");
      if (value === null || typeof value !== "object" || Array.isArray(value)) throw new Error("it is not an object");
      problem.textContent = "";
      json.removeAttribute("aria-invalid");
      return value;
    } catch (error) {
      problem.textContent = `Not a JSON object: ${error.message}`;
      json.setAttribute("aria-invalid", "true");
      return null;
    }
  }

  function toJson(field) {
    const value = read() ?? {};
    const text = field.value;
    if (text === "" && !("required" in field.dataset)) delete value[nameOf(field)];
    else if (field.dataset.kind === "text") value[nameOf(field)] = text;
    else {
      try { value[nameOf(field)] = JSON.parse(text); field.removeAttribute("aria-invalid"); }
      catch { field.setAttribute("aria-invalid", "true"); return; }
    }
    json.value = JSON.stringify(value, null, 2);
    read();
  }

  function toFields() {
    const value = read();
    if (!value) return;
    for (const field of fields) {
      const own = value[nameOf(field)];
      const text = own === undefined ? "" : field.dataset.kind === "text" && typeof own === "string" ? own : JSON.stringify(own);
      if (field.value !== text) field.value = text;
    }
  }

  for (const field of fields) field.addEventListener("input", () => toJson(field));
  json.addEventListener("input", toFields);
  call.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); call.requestSubmit(); }
  });
}
