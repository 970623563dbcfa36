// The pages: fleet, policy, job, catalog, failures. Each follows one stream and shows what came last.

import { html, useEffect, useMemo, useRef, useState } from "./vendor/htm-preact.js";
import { ask, follow } from "./console.js";

// Numbers and times, as `kubectl compaction` prints them.

function bytes(value) {
  if (value === null || value === undefined) return "-";
  let rest = value;
  for (const unit of ["", "Ki", "Mi", "Gi", "Ti", "Pi"]) {
    if (rest < 1024 || unit === "Pi") return unit === "" ? `${rest}` : `${rest < 10 ? rest.toFixed(1).replace(/\.0$/, "") : Math.round(rest)}${unit}`;
    rest /= 1024;
  }
}

function age(seconds) {
  if (seconds === null || seconds === undefined || Number.isNaN(seconds)) return "-";
  const whole = Math.max(0, Math.floor(seconds));
  const parts = [["d", 86400], ["h", 3600], ["m", 60], ["s", 1]];
  const first = parts.findIndex(([, size]) => whole >= size);
  if (first < 0) return "0s";
  const [unit, size] = parts[first];
  const rest = parts[first + 1];
  const small = rest && whole < size * 10 ? Math.floor((whole % size) / rest[1]) : 0;
  return `${Math.floor(whole / size)}${unit}${small ? `${small}${rest[0]}` : ""}`;
}

const seconds = (text) => (text ? Date.parse(text) / 1000 : null);
const short = (text) => (text ? new Date(text).toLocaleString(undefined, { dateStyle: "short", timeStyle: "medium" }) : "-");
const percent = (value) => (value === null || value === undefined ? "-" : `${value}%`);

function useNow(step) {
  const [now, setNow] = useState(Date.now() / 1000);
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now() / 1000), step * 1000);
    return () => clearInterval(timer);
  }, [step]);
  return now;
}

const since = (text, now) => (text ? age(now - seconds(text)) : "-");

function useStream(path) {
  const [page, setPage] = useState(null);
  const [state, setState] = useState({ state: "waiting" });
  useEffect(() => follow(path, setPage, setState), [path]);
  return [page, state];
}

// Parts.

function Live({ state, problems }) {
  const words = { waiting: "connecting", live: "live", lost: "connection lost, trying again", refused: state.message };
  return html`<p class=${`live ${state.state}`} role="status" data-live=${state.state}>${words[state.state]}</p>
    ${(problems || []).map((text) => html`<p class="notice bad">${text}</p>`)}`;
}

function Badge({ ready, reason }) {
  const mood = ready === "True" ? "good" : ready === "False" ? "bad" : "wait";
  return html`<span class=${`badge ${mood}`}>${reason || "Unknown"}</span>`;
}

const LONG = 24;

// Long names, such as paths, may break anywhere; words of a reason may not. Of a long table the first rows are shown.
function Table({ caption, head, rows, empty, most = 20 }) {
  const [all, showAll] = useState(false);
  if (!rows.length) return html`<p class="quiet">${empty || "None."}</p>`;
  const shown = all ? rows : rows.slice(0, most);
  const cell = (value, column) => html`<td class=${typeof value === "string" && value.length > LONG ? "long" : ""} data-label=${head[column]}>${value}</td>`;
  return html`<div class="scroll"><table>
    <caption>${caption}</caption>
    <thead><tr>${head.map((text) => html`<th scope="col">${text}</th>`)}</tr></thead>
    <tbody>${shown.map((cells, at) => html`<tr key=${at}>${cells.map(cell)}</tr>`)}</tbody>
  </table></div>
  ${rows.length > shown.length && html`<p><button onClick=${() => showAll(true)}>Show all ${rows.length}</button></p>`}`;
}

function Pairs({ pairs }) {
  return html`<dl class="pairs">${pairs.map(([name, value]) => html`<dt>${name}</dt><dd>${value}</dd>`)}</dl>`;
}

function Why({ why }) {
  const lists = [["State", why.state], ["Debt", why.debt], ["Next", why.next], ["What to do", why.actions]];
  return html`<section class="card" aria-label="Why"><h2>Why</h2>
    ${lists.filter(([, items]) => items.length).map(([name, items]) => html`<h3>${name}</h3><ul>${items.map((text) => html`<li>${text}</li>`)}</ul>`)}
  </section>`;
}

function Chart({ label, points, format }) {
  const box = useRef(null);
  useEffect(() => {
    if (points.length < 2) return undefined;
    const style = getComputedStyle(document.documentElement);
    const line = style.getPropertyValue("--accent").trim();
    const axis = { stroke: style.getPropertyValue("--quiet").trim(), grid: { stroke: style.getPropertyValue("--line").trim(), width: 1 } };
    const width = Math.max(200, box.current.clientWidth);
    const chart = new uPlot(
      {
        width, height: 180, legend: { show: false }, cursor: { show: false },
        series: [{}, { stroke: line, width: 2, fill: `${line}22` }],
        axes: [axis, { ...axis, size: 60, values: (_, ticks) => ticks.map(format) }],
      },
      [points.map(([moment]) => moment), points.map(([, value]) => value)],
      box.current,
    );
    const watcher = new ResizeObserver(() => chart.setSize({ width: Math.max(200, box.current.clientWidth), height: 180 }));
    watcher.observe(box.current);
    return () => (watcher.disconnect(), chart.destroy());
  }, [points]);
  if (points.length < 2) return html`<p class="quiet">${label}: not enough points yet.</p>`;
  const last = points[points.length - 1][1];
  return html`<figure><figcaption>${label}: ${format(last)} now</figcaption><div class="chart" ref=${box} role="img" aria-label=${`${label}, ${format(last)} now`}></div></figure>`;
}

function useDebt(me, query) {
  const [points, setPoints] = useState([]);
  useEffect(() => {
    if (me.prometheus) ask(`/api/debt${query}`).then((answer) => setPoints(answer.points), () => setPoints([]));
  }, [query]);
  return points;
}

// Fleet.

const ORDERS = {
  needs: (row) => [-row.needs.length, -(row.debtBytes || row.behindVersions || 0)],
  name: (row) => [`${row.namespace}/${row.name}`],
  debt: (row) => [-(row.debtBytes || row.behindVersions || 0)],
  oldest: (row) => [row.oldestDebtAt || (row.pin && row.pin.since) || "9"],
  jobs: (row) => [-(row.active || 0), -(row.queued || 0)],
  reclaimed: (row) => [-(row.bytesReclaimed || row.bytesCut || 0)],
};

function compare(left, right) {
  for (let at = 0; at < left.length; at += 1) {
    if (left[at] < right[at]) return -1;
    if (left[at] > right[at]) return 1;
  }
  return 0;
}

function textOf(row) {
  const labels = Object.entries(row.labels).map(([name, value]) => `${name}=${value}`);
  return [row.namespace, row.name, row.kind, row.store, row.reason, row.waiting && row.waiting.reason, ...row.needs, ...labels].join(" ").toLowerCase();
}

function nextOf(row, now) {
  if (["Silent", "Released", "Absent"].includes(row.coordinator.state)) return "no coordinator";
  if (!row.observed) return "spec not observed";
  if (row.nextRunAt) return `round in ${age(seconds(row.nextRunAt) - now)}`;
  if (row.nextWindowAt) return `window in ${age(seconds(row.nextWindowAt) - now)}`;
  if (row.nextPlanAt) return `plan in ${age(seconds(row.nextPlanAt) - now)}`;
  if (!row.lastScanAt) return "-";
  return `scan in ${age(row.intervalS - ((now - seconds(row.lastScanAt)) % row.intervalS))}`;
}

function FleetRow({ row, now }) {
  const debt = row.kind === "policy" ? bytes(row.debtBytes) : row.behindVersions === null ? "-" : `${row.behindVersions} versions`;
  const oldest = row.kind === "policy" ? row.oldestDebtAt : row.pin && row.pin.since;
  const jobs = row.kind === "policy" ? `${row.active} run${row.progressPercent === null ? "" : ` (${row.progressPercent}%)`}, ${row.queued} wait` : row.participants === null ? "-" : `${row.answered}/${row.participants} answered`;
  return html`<tr class=${row.needs.length ? "needs" : ""}>
    <th scope="row" data-label="Name"><a data-row href=${`/${row.kind}/${row.namespace}/${row.name}`}>${row.name}</a> <span class="quiet">${row.namespace}${row.kind === "catalog" ? ", catalog" : ""}</span></th>
    <td data-label="State"><${Badge} ready=${row.ready} reason=${row.reason} /> <span class="quiet">${since(row.reasonSince, now)}</span></td>
    <td data-label="Needs a person">${row.needs.join(", ") || "-"}</td>
    <td class="number" data-label="Debt">${debt}</td>
    <td class="number" data-label="Oldest">${since(oldest, now)}</td>
    <td data-label="Jobs">${jobs}</td>
    <td data-label="Waiting">${row.waiting ? `${row.waiting.reason} (${since(row.waiting.since, now)})` : row.pin && row.pin.reason ? `${row.pin.reason}${row.pin.participant ? ` of ${row.pin.participant}` : ""}` : "-"}</td>
    <td class="number" data-label="ETA">${age(row.etaSeconds)}</td>
    <td data-label="Next">${nextOf(row, now)}</td>
    <td class="number" data-label="Reclaimed">${bytes(row.kind === "policy" ? row.bytesReclaimed : row.bytesCut)}</td>
  </tr>`;
}

const SHOWN = 200;

export function Fleet({ me }) {
  const rows = useRef(new Map());
  const [fleet, setFleet] = useState(null);
  const [state, setState] = useState({ state: "waiting" });
  const [filter, setFilter] = useState(new URLSearchParams(location.search).get("filter") || "");
  const [order, setOrder] = useState("needs");
  const [only, setOnly] = useState(false);
  const [most, setMost] = useState(SHOWN);
  const [seen, setSeen] = useState([]);
  const now = useNow(5);
  const week = useDebt(me, "");

  useEffect(() => follow("/api/stream/fleet", (change) => {
    if (change.first) rows.current = new Map();
    for (const row of change.rows) rows.current.set(row.key, { ...row, text: textOf(row) });
    for (const key of change.gone) rows.current.delete(key);
    setFleet({ totals: change.totals, problems: change.problems });
    setSeen((before) => [...before.slice(-999), [Date.now() / 1000, change.totals.debtBytes]]);
  }, setState), []);

  const chosen = useMemo(() => {
    const words = filter.toLowerCase().split(/\s+/).filter(Boolean);
    const found = [...rows.current.values()].filter((row) => (!only || row.needs.length) && words.every((word) => row.text.includes(word)));
    const key = ORDERS[order];
    return found.map((row) => [[...key(row), row.namespace, row.name], row]).sort((left, right) => compare(left[0], right[0])).map(([, row]) => row);
  }, [fleet, filter, order, only]);

  if (!fleet) return html`<h1>Fleet</h1><${Live} state=${state} />`;
  const all = [...rows.current.values()];
  const totals = fleet.totals;
  const figures = [
    ["Need a person", all.filter((row) => row.needs.length).length],
    ["Policies", totals.policies],
    ["Catalogs", all.filter((row) => row.kind === "catalog").length],
    ["Debt", bytes(totals.debtBytes)],
    ["Jobs run", totals.active],
    ["Jobs wait", totals.queued],
    ["Faulty", totals.faulty],
    ["Reclaimed", bytes(totals.bytesReclaimed)],
  ];
  const column = (name, text) => html`<th scope="col" aria-sort=${order === name ? "ascending" : undefined}><button class="sort" onClick=${() => setOrder(name)}>${text}${order === name ? " ↓" : ""}</button></th>`;
  return html`<div class="title"><h1>Fleet</h1><span class="quiet">${me.namespace ? `namespace ${me.namespace}` : "all namespaces"}</span></div>
    <${Live} state=${state} problems=${fleet.problems} />
    <div class="figures">${figures.map(([name, value]) => html`<div class=${name === "Need a person" && value ? "figure bad" : "figure"}><b>${value}</b><span>${name}</span></div>`)}</div>
    <section class="card"><${Chart} label=${me.prometheus ? "Debt in the last 7 days" : "Debt since this page was opened"} points=${me.prometheus ? week : seen} format=${bytes} /></section>
    <div class="bar">
      <label class="grow">Filter <input id="filter" type="search" placeholder="name, namespace, reason, label=value" value=${filter} onInput=${(event) => setFilter(event.target.value)} /></label>
      <label><input type="checkbox" checked=${only} onChange=${(event) => setOnly(event.target.checked)} /> needs a person</label>
      <span class="quiet" role="status">${chosen.length} of ${all.length}</span>
    </div>
    ${all.length === 0
      ? html`<section class="card"><p>No policy and no catalog is here yet. Begin with an example: kubectl apply -f manifests/examples/</p></section>`
      : html`<div class="scroll"><table class="fleet"><caption>Policies and catalogs, those that need a person first</caption>
        <thead><tr>${column("name", "Name")}<th scope="col">State</th>${column("needs", "Needs a person")}${column("debt", "Debt")}${column("oldest", "Oldest")}${column("jobs", "Jobs")}<th scope="col">Waiting</th><th scope="col">ETA</th><th scope="col">Next</th>${column("reclaimed", "Reclaimed")}</tr></thead>
        <tbody>${chosen.slice(0, most).map((row) => html`<${FleetRow} key=${row.key} row=${row} now=${now} />`)}</tbody></table></div>
        ${chosen.length > most && html`<p><button onClick=${() => setMost(most + SHOWN)}>Show ${Math.min(SHOWN, chosen.length - most)} more of ${chosen.length - most}</button></p>`}`}`;
}

// Policy.

function Timeline({ jobs, now }) {
  const attempts = jobs.flatMap((job) => job.attempts.map((attempt) => ({ ...attempt, job: job.name })));
  if (!attempts.length) return html`<p class="quiet">No job has been assigned yet.</p>`;
  const start = Math.min(...attempts.map((attempt) => seconds(attempt.startedAt)));
  const end = Math.max(...attempts.map((attempt) => seconds(attempt.endedAt) || now), start + 1);
  const workers = [...new Set(attempts.map((attempt) => attempt.worker))].sort();
  const place = (moment) => (100 * (moment - start)) / (end - start);
  return html`<div class="timeline" role="img" aria-label=${`${attempts.length} attempts by ${workers.length} workers`}>
    ${workers.map((worker) => html`<div class="lane"><span class="lane-name" title=${worker}>${worker}</span>
      <svg viewBox="0 0 100 10" preserveAspectRatio="none">${attempts.filter((attempt) => attempt.worker === worker).map((attempt) => {
        const from = place(seconds(attempt.startedAt));
        const until = place(seconds(attempt.endedAt) || now);
        return html`<rect class=${`attempt ${attempt.outcome || "Running"}`} x=${from} y="1" height="8" width=${Math.max(0.4, until - from)}><title>${`${attempt.job}: ${attempt.outcome || "Running"}, token ${attempt.token}, ${age((seconds(attempt.endedAt) || now) - seconds(attempt.startedAt))}`}</title></rect>`;
      })}</svg></div>`)}
    <p class="quiet ends"><span>${short(new Date(start * 1000))}</span><span>${short(new Date(end * 1000))}</span></p>
  </div>`;
}

function Button({ run, act, confirm, children, ...body }) {
  const [asked, setAsked] = useState(false);
  const press = () => (setAsked(false), run({ act, ...body }));
  if (asked) return html`<span class="confirm">${confirm} <button class="main" onClick=${press}>Yes</button> <button onClick=${() => setAsked(false)}>No</button></span>`;
  return html`<button data-act=${act} onClick=${confirm ? () => setAsked(true) : press}>${children}</button>`;
}

function Acts({ page, kind, namespace, name, run }) {
  if (!page.rights.patch) return null;
  const about = { kind, namespace, name, run };
  return html`<div class="acts">
    <${Button} ...${about} act="run-now">Run now<//>
    ${kind === "policy" && page.row.nextWindowAt && html`<${Button} ...${about} act="run-now" outsideWindow=${true} confirm="Outside of the windows?">Run now, outside of windows<//>`}
    <${Button} ...${about} act="scan">Scan<//>
    ${page.suspended ? html`<${Button} ...${about} act="resume">Resume<//>` : html`<${Button} ...${about} act="suspend" confirm="What runs ends, nothing else starts. Suspend?">Suspend<//>`}
  </div>`;
}

function Plan({ page, namespace, name, run, now }) {
  const plan = page.plan;
  if (!plan || !plan.hash) return html`<section class="card" aria-label="Plan"><h2>Plan</h2><p class="quiet">No plan had a job yet.</p><${LeftOut} rows=${page.leftOut} now=${now} /></section>`;
  const pairs = [["Hash", html`<code>${plan.hash}</code>`], ["Jobs", plan.jobs], ["Copies", bytes(plan.costBytes)], ["Reclaims", bytes(plan.gainBytes)], ["Made", `${since(plan.createdAt, now)} ago`]];
  if (plan.approval) pairs.push(["Approval", plan.approval === "Pending" ? `Pending for ${since(plan.waitingSince, now)}` : `${plan.approval}${plan.approvedBy ? ` by ${plan.approvedBy}` : ""}`]);
  const work = (plan.work || []).map((item) => [item.job, item.target, item.groups, bytes(item.costBytes), bytes(item.gainBytes)]);
  return html`<section class="card" aria-label="Plan"><h2>Plan</h2><${Pairs} pairs=${pairs} />
    ${plan.approval === "Pending" && page.rights.approve && html`<p><${Button} run=${run} act="approve" kind="policy" namespace=${namespace} name=${name} plan=${plan.hash} confirm=${`Approve ${plan.jobs} jobs of plan ${plan.hash}?`}>Approve<//></p>`}
    ${work.length > 0 && html`<${Table} caption="Jobs of the plan, the largest gain first" head=${["Job", "Target", "Groups", "Copies", "Reclaims"]} rows=${work} />`}
    <${LeftOut} rows=${page.leftOut} now=${now} />
  </section>`;
}

function LeftOut({ rows, now }) {
  if (!rows.length) return null;
  return html`<${Table} caption="Left out" head=${["Reason", "Count", "Example", "Due", "Why"]} rows=${rows.map((row) => [row.reason, row.count, row.example || "-", row.dueAt ? (seconds(row.dueAt) > now ? `in ${age(seconds(row.dueAt) - now)}` : "now") : "-", row.says])} />`;
}

function flat(value, prefix, into) {
  if (value !== null && typeof value === "object" && !Array.isArray(value)) {
    for (const [name, item] of Object.entries(value)) flat(item, prefix ? `${prefix}.${name}` : name, into);
  } else into[prefix] = Array.isArray(value) ? JSON.stringify(value) : value;
  return into;
}

function Runs({ history, now }) {
  const rows = history.map((run) => [
    html`<code>${run.plan}</code>`, run.reason || "-", short(run.startedAt), run.endedAt ? age(seconds(run.endedAt) - seconds(run.startedAt)) : `runs for ${since(run.startedAt, now)}`,
    run.approvedBy || "-", `${run.succeeded} of ${run.jobs}${run.faulty ? `, ${run.faulty} faulty` : ""}`, bytes(run.bytesRead), bytes(run.bytesWritten), bytes(run.bytesReclaimed),
    run.cpuSeconds === undefined || run.cpuSeconds === null ? "-" : `${run.cpuSeconds.toFixed(1)}s`,
  ]);
  return html`<${Table} caption="The last runs, the newest first" head=${["Plan", "Why", "Started", "Took", "Approved by", "Jobs", "Read", "Written", "Reclaimed", "CPU"]} rows=${rows} empty="No plan was carried out yet." most=${5} />`;
}

export function Policy({ namespace, name, me, act, propose }) {
  const [page, state] = useStream(`/api/stream/policy/${namespace}/${name}`);
  const now = useNow(1);
  const week = useDebt(me, `?namespace=${namespace}&name=${name}`);
  if (!page || page.missing) return html`<h1>${name}</h1><${Live} state=${state} problems=${page ? page.problems : []} />${page && html`<p>${page.missing}</p>`}`;
  const row = page.row;
  const debt = [...page.history].reverse().filter((run) => run.debtBytes !== undefined && run.debtBytes !== null).map((run) => [seconds(run.startedAt), run.debtBytes]);
  const points = me.prometheus ? week : debt;
  return html`<div class="title"><h1>${name}</h1><span class="quiet">${namespace}, ${row.store || "not scanned yet"}</span><${Badge} ready=${row.ready} reason=${row.reason} /></div>
    <${Live} state=${state} problems=${page.problems} />
    ${row.needs.length > 0 && html`<p class="notice bad">Needs a person: ${row.needs.join(", ")}</p>`}
    <${Acts} page=${page} kind="policy" namespace=${namespace} name=${name} run=${act} />
    <div class="figures">${[["Debt", bytes(row.debtBytes)], ["Oldest", since(row.oldestDebtAt, now)], ["Run", row.active], ["Wait", row.queued], ["Faulty", row.faulty], ["ETA", age(row.etaSeconds)], ["Reclaimed", bytes(row.bytesReclaimed)], ["Workers", row.workers]].map(([title, value]) => html`<div class="figure"><b>${value}</b><span>${title}</span></div>`)}</div>
    <div class="columns">
      <${Why} why=${page.why} />
      <${Plan} page=${page} namespace=${namespace} name=${name} run=${act} now=${now} />
    </div>
    <${Preview} page=${page} kind="policy" namespace=${namespace} name=${name} propose=${propose} now=${now} />
    <section class="card" aria-label="Jobs"><h2>Jobs by worker</h2><${Timeline} jobs=${page.jobs} now=${now} /><${JobTable} page=${page} namespace=${namespace} run=${act} now=${now} /></section>
    <section class="card" aria-label="History"><h2>History, cost and gain</h2>
      ${page.measures.length > 0 && html`<${Pairs} pairs=${page.measures} />`}
      <${Cost} status=${page.status} />
      <${Chart} label=${me.prometheus ? "Debt in the last 7 days" : "Debt at the beginning of each run"} points=${points} format=${bytes} />
      <${Runs} history=${page.history} now=${now} /></section>
    ${page.quarantined.length > 0 && html`<section class="card"><h2>Quarantined</h2><${Table} caption="Damaged sources" head=${["Source", "Target", "Reason", "Since", "What"]} rows=${page.quarantined.map((item) => [item.source, item.target, item.reason, since(item.since, now), item.message])} /></section>`}
    <${Spec} text=${page.spec} />`;
}

function Preview({ page, kind, namespace, name, propose, now }) {
  const [text, setText] = useState(null);
  const [busy, setBusy] = useState(false);
  const preview = page.preview;
  async function ask() {
    setBusy(true);
    await propose({ kind, namespace, name, text: text === null ? page.spec : text });
    setBusy(false);
  }
  return html`<section class="card" aria-label="Preview"><h2>What would a change do</h2>
    ${preview && html`<p class="quiet">Asked ${since(preview.at, now)} ago; nothing was created for it.</p>`}
    ${preview && preview.refused && html`<p class="notice bad">${preview.refused}</p>`}
    ${preview && preview.tables.map((table) => html`<${Table} caption=${`${table.title}: in force, and proposed`} head=${[table.title, "In force", "Proposed"]} rows=${table.rows.map((row) => row.map((cell) => (cell === null ? "-" : String(cell))))} />`)}
    ${preview && preview.lines.length > 0 && html`<ul>${preview.lines.map((line) => html`<li>${line}</li>`)}</ul>`}
    ${page.rights.patch && html`<details><summary>Propose another spec</summary>
      <label>Spec, as YAML<textarea rows="14" spellcheck=${false} value=${text === null ? page.spec : text} onInput=${(event) => setText(event.target.value)}></textarea></label>
      <p><button data-act="preview" disabled=${busy} onClick=${ask}>${busy ? "Asking the operator" : "Preview"}</button></p></details>`}
  </section>`;
}

function Spec({ text }) {
  return html`<details class="card"><summary>Spec</summary><pre tabindex="0">${text}</pre></details>`;
}

function Cost({ status }) {
  const cost = status.cost;
  if (!cost) return html`<p class="quiet">What it costs is not known until a job has ended whose worker reported it.</p>`;
  const gain = cost.gainPerCpuSecond;
  return html`<${Pairs} pairs=${[["CPU time", `${cost.cpuSeconds.toFixed(1)} s of drivers and executors`], ["Reclaimed for it", bytes(cost.bytesReclaimed)], ["Gain", gain === null || gain === undefined ? "-" : `${bytes(gain)} per CPU second`]]} />`;
}

function JobTable({ page, namespace, run, now }) {
  const head = ["Job", "State", "Progress", "Worker", "Copies", "Reclaimed", "Took", "Reason", ""];
  const rows = page.jobs.map((job) => [
    html`<a data-row href=${`/job/${namespace}/${job.name}`}>${job.name}</a>`,
    job.state, percent(job.progress), job.worker || "-", bytes(job.estimatedBytes), bytes(job.bytesReclaimed),
    job.startedAt ? age((seconds(job.endedAt) || now) - seconds(job.startedAt)) : "-", job.reason || "-",
    job.isFaulty && page.rights.retry ? html`<${Button} run=${run} act="retry" kind="job" namespace=${namespace} name=${job.name}>Retry<//>` : "",
  ]);
  return html`<${Table} caption="Jobs" head=${head} rows=${rows} empty="No jobs." most=${10} />`;
}

// Job.

export function Job({ namespace, name, act }) {
  const [page, state] = useStream(`/api/stream/job/${namespace}/${name}`);
  const now = useNow(1);
  if (!page || page.missing) return html`<h1>${name}</h1><${Live} state=${state} problems=${page ? page.problems : []} />${page && html`<p>${page.missing}</p>`}`;
  const row = page.row;
  const attempts = row.attempts.map((attempt) => [
    attempt.token, attempt.worker, short(attempt.startedAt), age((seconds(attempt.endedAt) || now) - seconds(attempt.startedAt)), attempt.outcome || "Running", attempt.charged ? "yes" : "no", attempt.reason || "-", attempt.message || "",
  ]);
  const mood = row.state === "Succeeded" ? "True" : row.isFaulty ? "False" : "Unknown";
  return html`<div class="title"><h1>${name}</h1><span class="quiet">job of <a href=${`/policy/${namespace}/${row.policy}`}>${row.policy}</a></span><${Badge} ready=${mood} reason=${row.state} /></div>
    <${Live} state=${state} problems=${page.problems} />
    ${row.isFaulty && page.rights.retry && html`<div class="acts"><${Button} run=${act} act="retry" kind="job" namespace=${namespace} name=${name}>Retry<//></div>`}
    <div class="columns"><${Why} why=${page.why} />
      <section class="card" aria-label="Work"><h2>Work</h2><${Pairs} pairs=${[["Target", row.target || "-"], ["Level", row.level], ["Copies", bytes(row.estimatedBytes)], ["Progress", percent(row.progress)], ["Worker", row.worker || "-"], ["Token", row.token], ["Failures", row.failures]]} /></section></div>
    <section class="card" aria-label="Attempts"><h2>Attempts</h2><${Table} caption="Attempts, the oldest first" head=${["Token", "Worker", "Started", "Took", "Outcome", "Counts", "Reason", "What"]} rows=${attempts} empty="It was not assigned yet." /></section>
    <${Receipt} page=${page} />
    ${page.skipped.length > 0 && html`<section class="card"><h2>Skipped</h2><${Table} caption="Sources that were left as they are" head=${["Source", "Reason", "What"]} rows=${page.skipped.map((item) => [item.source, item.reason, item.message])} /></section>`}
    <${LogEnd} namespace=${namespace} worker=${page.worker} running=${row.state === "InProgress"} />`;
}

function Receipt({ page }) {
  const receipt = page.receipt;
  if (!receipt) return html`<section class="card" aria-label="Receipt"><h2>Receipt</h2><p class="quiet">Nothing was committed yet.</p></section>`;
  const { sources, outputs, obsolete, fingerprintBefore, fingerprintAfter, fingerprintDuplicates, ...rest } = receipt;
  const named = (names) => (names && names.length ? html`<details><summary>${names.length}</summary><ul>${names.map((name) => html`<li><code>${name}</code></li>`)}</ul></details>` : "0");
  const figures = Object.entries(flat(rest, "", {})).map(([field, value]) => [field, /bytes/i.test(field) && !/PerSecond/.test(field) ? bytes(value) : String(value)]);
  return html`<section class="card" aria-label="Receipt"><h2>Receipt</h2>
    <${Pairs} pairs=${[["sources", named(sources)], ["outputs", named(outputs)], ["obsolete", named(obsolete)], ...figures]} />
    <h3>Fingerprints</h3>
    <${Pairs} pairs=${[["before", html`<code>${fingerprintBefore || "-"}</code>`], ["after", html`<code>${fingerprintAfter || "-"}</code>`], ...(fingerprintDuplicates ? [["duplicates", html`<code>${fingerprintDuplicates}</code>`]] : []), ["", page.isProven ? html`<span class="badge good">equal</span>` : fingerprintDuplicates ? "equal less the duplicates, as the commit requires" : "-"]]} />
  </section>`;
}

function LogEnd({ namespace, worker, running }) {
  const [log, setLog] = useState("");
  const [said, setSaid] = useState("");
  if (!worker) return null;
  const load = () => ask(`/api/log/${namespace}/${worker}`).then((answer) => (setLog(answer.log), setSaid(answer.log ? "" : "The log is empty.")), (error) => setSaid(error.message));
  return html`<section class="card" aria-label="Log"><h2>End of the log of ${worker}</h2>
    <p><button onClick=${load}>${log ? "Load again" : "Load"}</button> <span class="quiet" role="status">${said || (running ? "The worker runs." : "")}</span></p>
    ${log && html`<pre tabindex="0">${log}</pre>`}</section>`;
}

// Catalog.

function Versions({ status }) {
  const { earliestVersion: first, latestVersion: last, lastCompactedVersion: cut } = status;
  if (first === undefined || first === null || last === undefined || last === null) return html`<p class="quiet">The history is not known yet.</p>`;
  const span = Math.max(1, last - first);
  const kept = Math.min(span, 1);
  const behind = (100 * (span - kept)) / span;
  const said = `versions ${first} to ${last}; ${Math.max(0, last - 1 - first)} are kept beyond the two that always stay`;
  return html`<figure><figcaption>${said}${cut ? `; last cut at ${cut}` : ""}</figcaption>
    <svg class="versions" viewBox="0 0 100 8" preserveAspectRatio="none" role="img" aria-label=${said}>
      <rect class="behind" x="0" y="0" height="8" width=${behind}></rect><rect class="kept" x=${behind} y="0" height="8" width=${100 - behind}></rect></svg>
    <p class="quiet ends"><span>earliest ${first}</span><span>latest ${last}</span></p></figure>`;
}

export function Catalog({ namespace, name, act, propose }) {
  const [page, state] = useStream(`/api/stream/catalog/${namespace}/${name}`);
  const now = useNow(1);
  if (!page || page.missing) return html`<h1>${name}</h1><${Live} state=${state} problems=${page ? page.problems : []} />${page && html`<p>${page.missing}</p>`}`;
  const row = page.row;
  const pin = row.pin;
  const participants = page.participants.map((item) => [item.name, item.answered ? "Answered" : html`<span class="badge bad">${item.reason}</span>`, item.cause || "-", item.subject || "-", since(item.neededAt, now), since(item.transactionAt, now), item.partitions, item.message || ""]);
  const rounds = page.history.map((round) => [short(round.startedAt), round.trigger, round.compaction || "-", round.propagation || "-", round.versionsCut, bytes(round.bytesCut)]);
  return html`<div class="title"><h1>${name}</h1><span class="quiet">${namespace}, catalog</span><${Badge} ready=${row.ready} reason=${row.reason} /></div>
    <${Live} state=${state} problems=${page.problems} />
    <${Acts} page=${page} kind="catalog" namespace=${namespace} name=${name} run=${act} />
    <section class="card" aria-label="History"><h2>History</h2><${Versions} status=${page.status} />
      ${pin && pin.reason && html`<p>Pinned by <b>${pin.reason}${pin.participant ? ` of ${pin.participant}` : ""}</b>${pin.subject ? ` (${pin.subject})` : ""}${pin.since ? ` for ${since(pin.since, now)}` : ""}: needed from ${short(pin.requiredAt)} on.</p>`}
      <${Pairs} pairs=${[["Cut so far", `${row.versionsCut} versions, ${bytes(row.bytesCut)}`], ["Next", nextOf(row, now)]]} /></section>
    <${Why} why=${page.why} />
    <section class="card" aria-label="Participants"><h2>Participants</h2><${Table} caption="Who needs what" head=${["Participant", "Answer", "Cause", "Subject", "Needs from", "Transaction", "Partitions", "What"]} rows=${participants} empty="No participant was asked yet." /></section>
    <${Preview} page=${page} kind="catalog" namespace=${namespace} name=${name} propose=${propose} now=${now} />
    <section class="card" aria-label="Rounds"><h2>Rounds</h2><${Table} caption="The last rounds, the newest first" head=${["Started", "Why", "Compaction", "Propagation", "Cut", "Bytes"]} rows=${rounds} empty="No round has cut anything yet." /></section>
    <${Spec} text=${page.spec} />`;
}

// Failures.

export function Failures() {
  const [page, state] = useStream("/api/stream/failures");
  const now = useNow(5);
  if (!page) return html`<h1>Failures</h1><${Live} state=${state} />`;
  return html`<h1>Failures by reason</h1><${Live} state=${state} problems=${page.problems} />
    ${page.reasons.length === 0 && html`<section class="card"><p>Nothing has failed: every policy and catalog is ready, and no job is parked.</p></section>`}
    ${page.reasons.map((group) => html`<details class="card" open key=${`${group.kind}/${group.reason}`}>
      <summary><b>${group.reason}</b> <span class="quiet">${group.count} ${group.kind === "policy" ? (group.count === 1 ? "policy" : "policies") : group.count === 1 ? group.kind : `${group.kind}s`}</span></summary>
      <p>${group.says}</p>${group.do && html`<p>${group.do}</p>`}
      <${Table} caption=${`With reason ${group.reason}`} head=${["Name", "Since", "What"]} rows=${group.items.map((item) => [html`<a data-row href=${`/${group.kind}/${item.namespace}/${item.name}`}>${item.namespace}/${item.name}</a>`, since(item.since, now), item.message])} />
      ${group.count > group.items.length && html`<p class="quiet">and ${group.count - group.items.length} more</p>`}
    </details>`)}`;
}
