// What the page shows around the terminal. Facts in, elements out; no network, no state but the
// elements. Text from a session is only ever set as text.

const SVG = 'http://www.w3.org/2000/svg';
const byId = (id) => document.getElementById(id);

export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith('on')) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, '');
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

export function icon(name, className = 'icon') {
  const svg = document.createElementNS(SVG, 'svg');
  svg.setAttribute('class', className);
  svg.setAttribute('aria-hidden', 'true');
  const use = document.createElementNS(SVG, 'use');
  use.setAttribute('href', `#i-${name}`);
  svg.append(use);
  return svg;
}

// Titles and names come from programs: no control characters, no text-direction tricks.
export function harmless(text, limit = 120) {
  const clean = String(text ?? '').replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu, ' ').trim();
  return clean.length > limit ? `${clean.slice(0, limit - 1)}…` : clean;
}

const ACTIVITIES = {
  running: 'running',
  prompt: 'at prompt',
  reading: 'waiting for input',
  password: 'waiting for a password',
  frozen: 'frozen',
  ended: 'ended',
  unavailable: 'unavailable',
};
const ACTIVITY_ICONS = { password: 'lock', frozen: 'frost' };

/** How it ended, in a badge's few words. */
export function ending(exit) {
  if (exit?.signal) return `ended (${signalName(exit.signal)})`;
  return Number.isInteger(exit?.code) ? `ended (${exit.code})` : 'ended';
}

/** And in a sentence. */
export function endingSentence(exit) {
  if (exit?.signal) return `This session was ended by ${signalName(exit.signal)}.`;
  if (!Number.isInteger(exit?.code)) return 'This session has ended.';
  return exit.code === 0 ? 'This session has ended.' : `This session ended with exit code ${exit.code}.`;
}

const SIGNALS = { 1: 'SIGHUP', 2: 'SIGINT', 3: 'SIGQUIT', 6: 'SIGABRT', 9: 'SIGKILL', 11: 'SIGSEGV', 15: 'SIGTERM' };
const signalName = (signal) => SIGNALS[signal] ?? (/^\d+$/.test(signal) ? `signal ${signal}` : harmless(signal, 12));

export function badge(state, attributes = {}) {
  const activity = state?.activity in ACTIVITIES ? state.activity : 'unavailable';
  const failed = activity === 'ended' && Boolean(state.exit?.signal || state.exit?.code);
  const mark = activity in ACTIVITY_ICONS
    ? icon(ACTIVITY_ICONS[activity])
    : element('i', { class: 'dot', 'aria-hidden': 'true' });
  const text = activity === 'ended' ? ending(state.exit) : ACTIVITIES[activity];
  const title = harmless(state?.sentence);
  return element('span', { class: 'badge', 'data-activity': activity, 'data-failed': failed, title, ...attributes }, mark, text);
}

export function showActivity(state) {
  const made = badge(state, { id: 'activity', role: 'status', 'aria-live': 'polite' });
  byId('activity').replaceWith(made);
}

export function hideActivity() {
  byId('activity').hidden = true;
}

export function showName(name, title, several) {
  byId('name').textContent = harmless(name, 63);
  byId('title').textContent = harmless(title);
  byId('title').title = harmless(title, 400);
  byId('picker').disabled = !several;
  const shown = [harmless(title, 60), harmless(name, 63)].filter(Boolean);
  document.title = [...new Set(shown), 'holdfast'].join(' · ');
}

// The same person has the same colour everywhere.
function hue(text) {
  let hash = 7;
  for (const char of text) hash = (hash * 31 + char.codePointAt(0)) % 360;
  return hash;
}

const MODALITY_ICONS = { browser: 'browser', cli: 'cli', kubectl: 'cli', ssh: 'cli' };
const MOST_CHIPS = 4;

function chip(client, self) {
  const own = client.client === self;
  const actor = harmless(client.actor, 24) || 'somebody';
  const modality = harmless(client.modality, 16);
  const watching = client.mode === 'view';
  const facts = [actor, modality, `${client.columns}×${client.rows}`];
  if (client.lead) facts.push('leads: typed last, sets the size');
  if (watching) facts.push('only watching');
  const label = facts.join(' · ') + (own ? ' (you)' : '');
  return element(
    'li',
    { class: 'client', style: `--hue: ${hue(actor)}`, title: label, 'aria-label': label, 'data-lead': Boolean(client.lead), 'data-self': own },
    element('span', { class: 'face', 'aria-hidden': 'true' }, [...actor][0]),
    element('span', {}, own ? 'you' : actor),
    icon(MODALITY_ICONS[client.modality] ?? 'program'),
    client.lead ? icon('pen', 'icon lead') : watching ? icon('eye') : null,
  );
}

export function showClients(clients, self) {
  const first = (client) => (client.lead ? 0 : client.client === self ? 1 : 2);
  const ordered = [...clients].sort((a, b) => first(a) - first(b));
  const shown = ordered.slice(0, MOST_CHIPS).map((client) => chip(client, self));
  const rest = ordered.slice(MOST_CHIPS);
  if (rest.length > 0) {
    const title = rest.map((c) => `${harmless(c.actor, 24)} · ${harmless(c.modality, 16)}`).join('\n');
    const count = element('span', { class: 'more-count' }, `+${rest.length}`);
    shown.push(element('li', { class: 'client more', title }, count));
  }
  byId('clients').replaceChildren(...shown);
}

const CONNECTIONS = {
  connecting: 'connecting', connected: 'live', waiting: 'reconnecting', behind: 'catching up', ended: 'ended', gone: 'gone', refused: 'refused', stopped: '',
};

export function showConnection(state) {
  const shown = byId('connection');
  shown.dataset.state = state;
  shown.title = CONNECTIONS[state];
  shown.replaceChildren(element('span', {}, CONNECTIONS[state]));
}

/** A line over the terminal that stays: `{text, spin, low, action: {label, act}}`, or null. */
export function showNotice(notice) {
  const shown = byId('notice');
  shown.hidden = notice === null;
  if (notice === null) return;
  shown.classList.toggle('low', Boolean(notice.low));
  shown.replaceChildren(
    ...(notice.spin ? [element('i', { class: 'spinner', 'aria-hidden': 'true' })] : []),
    element('span', {}, ...[notice.text].flat()),
    ...(notice.action ? [button(notice.action)] : []),
  );
}

let toastTimer = 0;

/** A line that goes away by itself. */
export function showToast(text, action = null) {
  const shown = byId('toast');
  shown.replaceChildren(element('span', {}, text), ...(action ? [button(action)] : []));
  shown.hidden = false;
  clearTimeout(toastTimer);
  toastTimer = setTimeout(() => { shown.hidden = true; }, 6000);
}

export function hideToast() {
  byId('toast').hidden = true;
}

const button = ({ label, act }, className = '') =>
  element('button', { type: 'button', class: className, onclick: act }, label);

// Whole pages

export function showTerminal() {
  byId('app').dataset.view = 'terminal';
  byId('page').hidden = true;
}

function showPage(view, content) {
  byId('app').dataset.view = view;
  byId('page').hidden = false;
  // Shown again every few seconds: what has not changed keeps its focus and is not read out again.
  if (byId('page').firstElementChild?.outerHTML === content.outerHTML) return;
  byId('page').replaceChildren(content);
}

export function showMessage({ sign = 'mark', alarm = false, title, text, code = null, action = null }) {
  document.title = `${title} · holdfast`;
  showPage('message', element(
    'div',
    { class: alarm ? 'message alarm' : 'message', role: alarm ? 'alert' : 'status' },
    element('div', { class: 'sign' }, icon(sign)),
    element('h1', {}, title),
    element('p', {}, text),
    code ? element('code', {}, code) : null,
    action ? button(action, 'primary') : null,
  ));
}

const commandOf = (session) =>
  Array.isArray(session.command) ? harmless(session.command.join(' '), 80) : '';

export function age(seconds) {
  if (!(seconds >= 0)) return '';
  if (seconds < 60) return 'just now';
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h`;
  return `${Math.floor(seconds / 86400)} d`;
}

function attachedTo(session) {
  const count = session.clients?.length ?? 0;
  return count === 0 ? 'nobody attached' : `${count} attached`;
}

export function showSessions(sessions, open) {
  document.title = 'Sessions · holdfast';
  const cards = sessions.map((session) => {
    const old = age(Date.now() / 1000 - session.created);
    const meta = [old, session.state?.activity === 'ended' ? null : attachedTo(session)];
    return element(
      'button',
      { type: 'button', class: 'card', onclick: () => open(session.session) },
      element('b', {}, session.session),
      badge(session.state),
      element('small', {}, commandOf(session)),
      element('span', { class: 'meta' }, meta.filter(Boolean).join(' · ')),
    );
  });
  showPage('sessions', element(
    'div', { class: 'chooser' }, element('h1', {}, 'Sessions'), element('div', { class: 'cards' }, ...cards),
  ));
}

/** The menu under the session's name. */
export function showMenu(sessions, current, open) {
  const items = sessions.map((session) => element(
    'button',
    { type: 'button', role: 'menuitemradio', 'aria-checked': String(session.session === current), onclick: () => open(session.session) },
    element('b', {}, session.session),
    element('small', {}, harmless(session.title) || commandOf(session)),
    badge(session.state),
  ));
  const menu = byId('menu');
  menu.replaceChildren(...items);
  menu.hidden = false;
  byId('picker').setAttribute('aria-expanded', 'true');
  (menu.querySelector('[aria-checked="true"]') ?? items[0])?.focus();
}

export function hideMenu() {
  byId('menu').hidden = true;
  byId('picker').setAttribute('aria-expanded', 'false');
}
