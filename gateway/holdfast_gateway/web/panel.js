// The panel beside the terminal, on a phone a sheet over it: processes and ports, the timeline, and
// what the session is. Only the tab that is seen asks for anything, and only while something
// happens in the session, or now and then.

import * as api from './api.js';
import { byId, copyable, element, face, harmless, icon, keep, sentence, shortName } from './dom.js';
import * as processes from './processes.js';
import { format, keyOf } from './route.js';
import { clock, entries } from './timeline.js';

const LOOK_MS = 2000;
// A quiet session is looked at this often all the same: sleeping processes end without a word.
const QUIET_LOOKS = 5;
const RECORDS = 500;
const TABS = ['processes', 'timeline', 'about'];

export class Panel {
  #session = null;
  #tab = 'processes';
  #timer = 0;
  #looks = 0;
  #heard = -1;
  #about;
  #heardNow;

  /** on: {heard: () => number, about: () => facts known here, changed: () => void} */
  constructor({ heard, about, changed }) {
    this.#heardNow = heard;
    this.#about = about;
    for (const tab of TABS) byId(`tab-${tab}`).addEventListener('click', () => this.#choose(tab));
    byId('tabs').addEventListener('keydown', (event) => this.#arrows(event));
    byId('panel-close').addEventListener('click', () => this.close());
    byId('panel-open').addEventListener('click', () => (this.open ? this.close() : this.show()));
    byId('panel').addEventListener('keydown', ({ key }) => key === 'Escape' && this.close());
    document.addEventListener('visibilitychange', () => this.look());
    this.#changed = changed;
  }

  #changed;

  get open() {
    return !byId('panel').hidden;
  }

  show() {
    byId('panel').hidden = false;
    byId('panel-open').setAttribute('aria-expanded', 'true');
    this.#choose(this.#tab);
    this.#changed();
  }

  close() {
    const inside = byId('panel').contains(document.activeElement);
    byId('panel').hidden = true;
    byId('panel-open').setAttribute('aria-expanded', 'false');
    clearTimeout(this.#timer);
    if (inside) byId('panel-open').focus();
    this.#changed();
  }

  /** Of which session; null: none is shown. */
  of(session) {
    const other = session === null || this.#session === null || keyOf(session) !== keyOf(this.#session);
    this.#session = session;
    if (other) this.#graph = null;
    if (other) for (const tab of TABS) byId(`panel-${tab}`).replaceChildren();
    if (session === null && this.open) this.close();
    this.look();
  }

  /** Now, if something can have changed. */
  look() {
    clearTimeout(this.#timer);
    if (!this.open || document.hidden || this.#session === null) return;
    const heard = this.#heardNow();
    if (heard !== this.#heard || this.#looks++ % QUIET_LOOKS === 0) {
      this.#heard = heard;
      this.#load(this.#tab, this.#session);
    }
    this.#timer = setTimeout(() => this.look(), LOOK_MS);
  }

  #choose(tab) {
    this.#tab = tab;
    for (const name of TABS) {
      const chosen = name === tab;
      byId(`tab-${name}`).setAttribute('aria-selected', String(chosen));
      byId(`tab-${name}`).tabIndex = chosen ? 0 : -1;
      byId(`panel-${name}`).hidden = !chosen;
    }
    this.#heard = -1;
    this.look();
  }

  #arrows(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const next = TABS[(TABS.indexOf(this.#tab) + step + TABS.length) % TABS.length];
    this.#choose(next);
    byId(`tab-${next}`).focus();
  }

  #graph = null; // of the look before

  #showGraph(box, graph) {
    showProcesses(box, graph, processes.loads(this.#graph, graph));
    this.#graph = graph;
  }

  async #load(tab, session) {
    const box = byId(`panel-${tab}`);
    try {
      const found = await LOADERS[tab](session);
      if (session !== this.#session || tab !== this.#tab) return;
      box.querySelector('.fault')?.remove();
      if (tab === 'processes') this.#showGraph(box, found);
      else if (tab === 'timeline') showTimeline(box, found);
      else showAbout(box, session, { ...found, ...this.#about() });
    } catch (error) {
      if (session !== this.#session || tab !== this.#tab) return;
      showFault(box, error);
    }
  }
}

const LOADERS = {
  processes: (session) => api.graph(session),
  timeline: (session) => api.journal(session, RECORDS),
  about: (session) => api.info(session),
};

// What was there stays: it is what was last known.
function showFault(box, { message, advice }) {
  const text = `${sentence(message) || 'The gateway does not answer.'} ${sentence(advice)}`.trim();
  const shown = box.querySelector('.fault');
  if (shown) shown.textContent = text;
  else box.prepend(element('p', { class: 'fault', role: 'status' }, text));
}

/** A part of a tab that is made once. */
function part(box, name, make) {
  return box.querySelector(`.${name}`) ?? box.appendChild(make());
}

const heading = (text) => element('h2', {}, text);

// Processes

function showProcesses(box, graph, loads) {
  const listening = processes.ports(graph);
  const ports = part(box, 'listening', () => element('section', { class: 'listening' }, heading('Listening'), element('ul', { class: 'ports' })));
  ports.hidden = listening.length === 0;
  keep(ports.querySelector('ul'), listening.map((one) => ({ key: one.label, mark: `${one.pid}`, make: () => port(one) })));
  const tree = part(box, 'tree', () => element('section', { class: 'tree' }, heading('Processes'), element('ul', { class: 'processes' })));
  const rows = processes.rows(graph);
  keep(tree.querySelector('ul'), rows.map((row) => {
    const facts = {
      depth: row.depth,
      front: row.process.pgid === graph.foreground_pgid,
      doing: processes.doing(row.process, graph.tty),
      load: loads.get(row.process.pid) ?? 0,
      since: sinceWhen(processes.begun(row.process, graph)),
      command: processes.commandOf(row.process, { short: true }).replace(row.depth === 0 ? /^hold --.*/ : /$^/, 'hold'),
    };
    return { key: String(row.process.pid), mark: JSON.stringify(facts), make: () => processRow(row.process, facts) };
  }));
  const none = part(box, 'nothing', () => element('p', { class: 'nothing' }, 'No process is left.'));
  none.hidden = rows.length > 0;
}

function port({ protocol, label, name, pid }) {
  return element('li', { 'data-protocol': protocol },
    element('b', {}, label), element('span', {}, `${name} · pid ${pid}`));
}

const sinceWhen = (seconds) => (Number.isFinite(seconds) ? `since ${clock(seconds, { exact: false })}` : '');

function processRow(process, { depth, front, doing, load, since, command }) {
  const state = /^(running|stopped|reading)/.exec(doing)?.[1] ?? 'waiting';
  return element('li', { style: `--depth: ${Math.min(depth, 12)}`, 'data-front': front },
    element('code', { title: `${processes.commandOf(process)}\nin ${harmless(process.cwd, 200)}` }, command),
    element('span', { class: 'facts' },
      element('span', {}, `pid ${process.pid}`),
      depth > 0 ? element('span', { class: 'unseen' }, `child of ${process.ppid}`) : null,
      element('span', { class: 'doing', 'data-doing': state }, doing),
      load > 0 ? element('span', { class: 'load', title: 'of one processor, since the last look', style: `--load: ${Math.min(load, 100)}%` }, `${load} % cpu`) : null,
      since ? element('span', {}, since) : null,
      front ? element('span', { class: 'front' }, 'in front') : null));
}

// The timeline

function showTimeline(box, records) {
  const lines = entries(records);
  const list = part(box, 'lines', () => element('ol', { class: 'lines', reversed: true }));
  keep(list, lines.map((line) => ({
    key: `${line.time} ${line.kind} ${line.client ?? ''} ${line.actor ?? ''}`, mark: `${line.text} ${line.code ?? ''}`, make: () => timelineRow(line),
  })));
  part(box, 'nothing', () => element('p', { class: 'nothing' }, 'Nothing has happened yet.')).hidden = lines.length > 0;
}

function timelineRow({ time, actor, modality, kind, text, code }) {
  const when = new Date(time * 1000);
  return element('li', { 'data-kind': kind },
    actor === null ? element('span', { class: 'face event', 'aria-hidden': 'true' }, icon('mark')) : face(actor),
    element('span', { class: 'said' },
      element('span', {}, actor === null ? null : element('b', { title: harmless(actor, 200) }, shortName(actor)), actor === null ? sentence(text) : text.replace(/^(?!’)/, ' ')),
      code ? element('code', { title: code }, code) : null),
    element('span', { class: 'when' },
      element('time', { datetime: when.toISOString(), title: when.toLocaleString() }, clock(time)),
      modality ? element('small', {}, harmless(modality, 16)) : null));
}

// About

const count = new Intl.NumberFormat('en');

function showAbout(box, session, facts) {
  const attach = session.namespace
    ? `kubectl holdfast attach ${session.name} -n ${session.namespace}`
    : `holdfast attach ${session.name}`;
  const created = Number.isFinite(facts.created) ? clock(facts.created, { exact: false }) : null;
  const rows = [
    ['Name', keyOf(session)],
    ['State', facts.state?.sentence],
    ['Command', Array.isArray(facts.command) ? harmless(facts.command.join(' '), 300) : null],
    ['Phase', facts.phase],
    ['Node', facts.node],
    ['Epoch', facts.epoch],
    ['Turn', facts.holder_shown || facts.holder],
    ['Size', facts.columns ? `${facts.columns} × ${facts.rows}` : null],
    ['Output', Number.isFinite(facts.seq) ? `${count.format(facts.seq)} bytes since it began` : null],
    ['Begun', created],
    ['Session id', facts.session_id],
    ['Version', facts.version],
  ].filter(([, value]) => value !== null && value !== undefined && value !== '');
  const list = part(box, 'facts', () => element('dl', { class: 'facts' }));
  keep(list, rows.map(([name, value]) => ({
    key: name, mark: String(value), make: () => element('div', {}, element('dt', {}, name), element('dd', {}, harmless(value, 400))),
  })));
  part(box, 'links', () => element('section', { class: 'links' },
    heading('From a terminal'), copyable(attach),
    heading('Link to this page'), copyable(location.origin + location.pathname + format(session))));
}
