// The frame of the console: sign-in, routes, streams, keys, themes. What the pages show is in pages.js.
// Everything from the cluster is text and is put into the page as text; nothing here parses HTML.

import { html, render, useEffect, useState, useRef } from "./vendor/htm-preact.js";
import { Fleet, Policy, Job, Catalog, Failures } from "./pages.js";

const KEY = "compaction-console-key";
const THEME = "compaction-console-theme";

// Requests.

export class Refusal extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

function headers(more) {
  const key = localStorage.getItem(KEY);
  return { "X-Compaction-Console": "1", ...(key ? { Authorization: `Bearer ${key}` } : {}), ...more };
}

async function refusalOf(answer) {
  let message = `${answer.status} ${answer.statusText}`;
  try {
    message = (await answer.json()).message || message;
  } catch {
    // A proxy in front of the console answers in its own words.
  }
  return new Refusal(answer.status, message);
}

export async function ask(path) {
  const answer = await fetch(path, { headers: headers() });
  if (!answer.ok) throw await refusalOf(answer);
  return answer.json();
}

export async function send(path, body) {
  const options = { method: "POST", headers: headers({ "Content-Type": "application/json" }), body: JSON.stringify(body) };
  const answer = await fetch(path, options);
  if (!answer.ok) throw await refusalOf(answer);
  return answer.json();
}

// A stream of server-sent events, read with fetch because EventSource sends no headers. It ends while the tab is hidden,
// for browsers open six connections to an address at most, and begins again with everything when it is shown.

const PAUSE_MS = 2000;
const SILENT_MS = 40000;

export function follow(path, onData, onState) {
  let stopped = false;
  let current = null;

  async function once() {
    const aborting = new AbortController();
    current = aborting;
    let watchdog = setTimeout(() => aborting.abort(), SILENT_MS);
    try {
      const answer = await fetch(path, { headers: headers(), signal: aborting.signal });
      if (!answer.ok) throw await refusalOf(answer);
      onState({ state: "live" });
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (;;) {
        const { done, value } = await reader.read();
        if (done) return;
        clearTimeout(watchdog);
        watchdog = setTimeout(() => aborting.abort(), SILENT_MS);
        const blocks = (rest + value).split("\n\n");
        rest = blocks.pop();
        for (const block of blocks) {
          if (block.startsWith("data: ")) onData(JSON.parse(block.slice(6)));
        }
      }
    } finally {
      clearTimeout(watchdog);
    }
  }

  async function run() {
    while (!stopped) {
      if (document.hidden) {
        await new Promise((resolve) => document.addEventListener("visibilitychange", resolve, { once: true }));
        continue;
      }
      try {
        await once();
        if (!stopped) onState({ state: "lost" });
      } catch (error) {
        if (stopped) return;
        onState({ state: error instanceof Refusal ? "refused" : "lost", message: error.message, status: error.status });
      }
      await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
    }
  }

  const hide = () => document.hidden && current && current.abort();
  document.addEventListener("visibilitychange", hide);
  run();
  return () => {
    stopped = true;
    document.removeEventListener("visibilitychange", hide);
    if (current) current.abort();
  };
}

// Routes.

function routeOf(path) {
  const parts = path.split("/").filter(Boolean).map(decodeURIComponent);
  if (parts.length === 0) return { page: Fleet, title: "Fleet" };
  if (parts[0] === "failures") return { page: Failures, title: "Failures" };
  const [kind, namespace, name] = parts;
  const pages = { policy: Policy, job: Job, catalog: Catalog };
  return pages[kind] ? { page: pages[kind], title: name, namespace, name } : { page: Fleet, title: "Fleet" };
}

export function go(path) {
  history.pushState(null, "", path);
  dispatchEvent(new PopStateEvent("popstate"));
}

// Themes: that of the system, until another one is chosen.

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  if (theme === "system") localStorage.removeItem(THEME);
  else localStorage.setItem(THEME, theme);
}

const KEYS = [
  ["/", "filter the fleet"],
  ["j, k", "next and previous row"],
  ["Enter", "open the row"],
  ["g f", "fleet"],
  ["g x", "failures"],
  ["?", "this list"],
  ["Esc", "leave the filter, close this list"],
];

function useKeys(showHelp) {
  const pending = useRef("");
  useEffect(() => {
    function onKey(event) {
      const typing = event.target.closest("input, textarea, select");
      if (event.key === "Escape") {
        showHelp(false);
        if (typing) typing.blur();
        return;
      }
      if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
      const rows = [...document.querySelectorAll("a[data-row]")];
      const at = rows.indexOf(document.activeElement);
      const chord = pending.current + event.key;
      pending.current = event.key === "g" ? "g" : "";
      if (chord === "gf") go("/");
      else if (chord === "gx") go("/failures");
      else if (event.key === "/") document.querySelector("#filter")?.focus();
      else if (event.key === "?") showHelp(true);
      else if (event.key === "j") rows[Math.min(at + 1, rows.length - 1)]?.focus();
      else if (event.key === "k") rows[Math.max(at - 1, 0)]?.focus();
      else return;
      event.preventDefault();
    }
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  }, []);
}

function Help({ close }) {
  const dialog = useRef(null);
  useEffect(() => dialog.current.showModal(), []);
  return html`<dialog ref=${dialog} onClose=${close} aria-label="Keys">
    <h2>Keys</h2>
    <dl class="pairs">${KEYS.map(([key, what]) => html`<dt><kbd>${key}</kbd></dt><dd>${what}</dd>`)}</dl>
    <button onClick=${close}>Close</button>
  </dialog>`;
}

function Console() {
  const [path, setPath] = useState(location.pathname);
  const [me, setMe] = useState(null);
  const [refused, setRefused] = useState("");
  const [help, showHelp] = useState(false);
  const [said, setSaid] = useState(null);
  const [theme, chooseTheme] = useState(localStorage.getItem(THEME) || "system");
  useKeys(showHelp);

  useEffect(() => {
    const onPath = () => setPath(location.pathname);
    addEventListener("popstate", onPath);
    return () => removeEventListener("popstate", onPath);
  }, []);

  useEffect(() => {
    enter().then(setMe, (error) => setRefused(error.message));
  }, []);

  const route = routeOf(path);
  useEffect(() => {
    document.title = `${route.title} - Compaction`;
  }, [path]);

  async function act(body) {
    setSaid({ text: "..." });
    try {
      setSaid({ text: `${body.name}: ${(await send("/api/act", body)).said}` });
    } catch (error) {
      setSaid({ text: `${body.name}: ${error.message}`, bad: true });
    }
  }

  async function propose(body) {
    setSaid({ text: `${body.name}: the operator is asked` });
    try {
      await send("/api/preview", body);
      setSaid({ text: `${body.name}: previewed` });
    } catch (error) {
      setSaid({ text: `${body.name}: ${error.message}`, bad: true });
    }
  }

  function onClick(event) {
    const link = event.target.closest("a[href^='/']");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.button !== 0) return;
    event.preventDefault();
    go(link.getAttribute("href"));
    scrollTo(0, 0);
  }

  const here = (target) => (path === target ? "page" : undefined);
  return html`<div onClick=${onClick}>
    <a class="skip" href="#main" onClick=${(event) => event.stopPropagation()}>Skip to content</a>
    <header>
      <a class="brand" href="/">Compaction</a>
      <nav aria-label="Pages">
        <a href="/" aria-current=${here("/")}>Fleet</a>
        <a href="/failures" aria-current=${here("/failures")}>Failures</a>
      </nav>
      <span class="who" title=${me ? me.server : ""}>${me ? me.user : ""}</span>
      <label class="theme">Theme
        <select value=${theme} onChange=${(event) => (chooseTheme(event.target.value), setTheme(event.target.value))}>
          <option value="system">system</option><option value="light">light</option><option value="dark">dark</option>
        </select>
      </label>
      <button class="quiet" onClick=${() => showHelp(true)} aria-label="Keys">?</button>
    </header>
    <main id="main" tabindex="-1">
      ${refused
        ? html`<section class="card notice"><h1>Not signed in</h1><p>${refused}</p></section>`
        : me
          ? html`<${route.page} key=${path} ...${route} me=${me} act=${act} propose=${propose} />`
          : html`<p class="quiet">Connecting</p>`}
    </main>
    <p class=${`said ${said && said.bad ? "bad" : ""}`} role="status">
      ${said && html`${said.text} <button class="quiet" onClick=${() => setSaid(null)} aria-label="Dismiss">×</button>`}
    </p>
    ${help && html`<${Help} close=${() => showHelp(false)} />`}
  </div>`;
}

// The address that the terminal prints has the token in its fragment: it is exchanged for a key, and leaves the address.

async function enter() {
  const token = new URLSearchParams(location.hash.slice(1)).get("token");
  if (token) {
    history.replaceState(null, "", location.pathname);
    localStorage.setItem(KEY, (await send("/api/sign-in", { token })).key);
  }
  return ask("/api/me");
}

setTheme(localStorage.getItem(THEME) || "system");
render(html`<${Console} />`, document.getElementById("console"));
