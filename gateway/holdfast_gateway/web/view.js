// What the page shows around the terminal. Facts in, elements out; no network, no state but the
// elements.

import { button, byId, element, face, harmless, icon, shortName, shownName } from './dom.js';
import { keyOf, named } from './route.js';
import { ACTIVITIES, activityOf, ending } from './states.js';

const ACTIVITY_ICONS = { password: 'lock', frozen: 'frost', suspended: 'moon' };

export function badge(state, attributes = {}) {
  const activity = activityOf(state);
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
  const shown = byId('activity');
  if (shown.outerHTML !== made.outerHTML) shown.replaceWith(made); // else it would be read out again
}

export function hideActivity() {
  byId('activity').hidden = true;
}

export function showName(session, title, several) {
  const name = session === null ? 'holdfast' : harmless(session.name, 63);
  byId('name').textContent = name;
  byId('namespace').textContent = harmless(session?.namespace, 63);
  byId('title').textContent = harmless(title);
  byId('title').title = harmless(title, 400);
  byId('picker').disabled = !several;
  const shown = [harmless(title, 60), session === null ? '' : keyOf(session)].filter(Boolean);
  document.title = [...new Set(shown), 'holdfast'].join(' · ');
}

const MODALITY_ICONS = { browser: 'browser', cli: 'cli', kubectl: 'cli', ssh: 'cli' };
const MOST_CHIPS = 4;

function chip(client, self) {
  const own = client.client === self;
  const actor = shownName(client) || 'somebody';
  const watching = client.mode === 'view';
  const facts = [actor, harmless(client.modality, 16), `${client.columns}×${client.rows}`];
  if (client.turn) facts.push('has the turn');
  if (client.asks) facts.push('asks for the turn');
  if (client.lead) facts.push('leads: typed last, sets the size');
  if (watching) facts.push('only watching');
  const label = facts.join(' · ') + (own ? ' (you)' : '');
  return element(
    'li',
    { class: 'client', title: label, 'aria-label': label, 'data-lead': Boolean(client.lead), 'data-self': own },
    face(actor),
    element('span', {}, own ? 'you' : shortName(actor)),
    icon(MODALITY_ICONS[client.modality] ?? 'program'),
    client.lead ? icon('pen', 'icon lead') : client.asks ? icon('hand', 'icon asks') : watching ? icon('eye') : null,
  );
}

export function showClients(clients, self, unnamed = 0) {
  const first = (client) => (client.lead ? 0 : client.client === self ? 1 : 2);
  const ordered = [...clients].sort((a, b) => first(a) - first(b));
  const shown = ordered.slice(0, MOST_CHIPS).map((client) => chip(client, self));
  const rest = ordered.slice(MOST_CHIPS);
  const more = rest.length + unnamed;
  if (more > 0) {
    const title = rest.map((c) => `${shownName(c)} · ${harmless(c.modality, 16)}`).join('\n');
    const count = element('span', { class: 'more-count' }, `+${more}`);
    shown.push(element('li', { class: 'client more', title, 'aria-label': `${more} more` }, count));
  }
  byId('clients').replaceChildren(...shown);
}

const CONNECTIONS = {
  connecting: 'connecting', connected: 'live', waiting: 'reconnecting', behind: 'catching up', ended: 'ended', asleep: 'suspended', gone: 'gone',
  refused: 'signed out', forbidden: 'refused', unsupported: 'refused', stopped: '',
};

export function showConnection(state) {
  const shown = byId('connection');
  if (shown.dataset.state === state) return;
  shown.dataset.state = state;
  shown.title = CONNECTIONS[state];
  shown.replaceChildren(element('span', {}, CONNECTIONS[state]));
}

/** A card over the terminal that stays: `{title, text, busy, steps, step, elapsed, low, action}`. */
export function showNotice(notice) {
  const shown = byId('notice');
  shown.hidden = notice === null;
  if (notice === null) return;
  const { title, text = '', busy, steps, step, elapsed, low, action } = notice;
  shown.classList.toggle('low', Boolean(low));
  // Only what changed is touched: it counts seconds, and is not read out at each.
  const mark = JSON.stringify([title, steps, step, busy, low, action?.label]);
  if (shown.dataset.mark !== mark) {
    shown.dataset.mark = mark;
    const line = element('div', { class: 'line' },
      busy || steps ? element('i', { class: 'spinner', 'aria-hidden': 'true' }) : null,
      element('span', { class: 'words' }, element('b', {}, title), element('span', { class: 'more' })),
      element('span', { class: 'elapsed', 'aria-hidden': 'true' }),
      action ? button(action) : null);
    shown.replaceChildren(line, ...(steps ? [stepsOf(steps, step)] : []));
  }
  shown.querySelector('.more').textContent = text;
  shown.querySelector('.elapsed').textContent = elapsed > 0 ? `${elapsed} s` : '';
}

function stepsOf(steps, step) {
  const of = (name, index) => {
    const where = index < step ? 'done' : index === step ? 'now' : 'ahead';
    return element('li', { 'data-step': where, 'aria-current': where === 'now' ? 'step' : null }, name);
  };
  return element('ol', { class: 'steps' }, ...steps.map(of));
}

/** The line under the terminal, as states.js has it, and what its buttons do: `act(name)`. */
export function showStanding(standing, act) {
  const shown = byId('standing');
  shown.hidden = standing === null;
  byId('app').dataset.typing = standing === null || standing.may ? 'yes' : 'no';
  const mark = JSON.stringify(standing);
  if (standing === null || shown.dataset.mark === mark) return; // else it would be read out again
  shown.dataset.mark = mark;
  shown.classList.toggle('asked', Boolean(standing.may));
  const { sign, text, full, detail, label, also } = standing;
  shown.replaceChildren(
    icon(sign),
    element('span', { class: 'words', title: [full, detail].filter(Boolean).join('\n') }, element('b', {}, text), ' ', element('small', {}, detail)),
    ...(also ? [button({ label: also.label, act: () => act(also.act) }, 'second')] : []),
    button({ label, act: () => act(standing.act) }),
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

// Whole pages

export function showTerminal() {
  byId('app').dataset.view = 'terminal';
  byId('page').hidden = true;
}

export function showPage(view, content) {
  byId('app').dataset.view = view;
  byId('page').hidden = false;
  // Shown again every few seconds: what has not changed keeps its focus and is not read out again.
  const shown = byId('page').firstElementChild;
  if (shown === content || shown?.outerHTML === content.outerHTML) return;
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

/** The menu under the session's name. */
export function showMenu(sessions, current, open) {
  const items = sessions.map((session) => {
    const { namespace, name } = named(session);
    const checked = current !== null && keyOf(named(session)) === keyOf(current);
    return element(
      'button',
      { type: 'button', role: 'menuitemradio', 'aria-checked': String(checked), onclick: () => open(named(session)) },
      element('b', {}, namespace ? element('small', {}, `${harmless(namespace, 63)} / `) : null, harmless(name, 63)),
      element('small', {}, harmless(session.title) || commandOf(session)),
      badge(session.state),
    );
  });
  openMenu(byId('menu'), byId('picker'), items);
}

export function openMenu(menu, by, items) {
  menu.replaceChildren(...items);
  menu.hidden = false;
  by.setAttribute('aria-expanded', 'true');
  (menu.querySelector('[aria-checked="true"]') ?? menu.querySelector('button'))?.focus();
}

export function hideMenus() {
  for (const menu of document.querySelectorAll('.menu')) {
    menu.hidden = true;
    document.querySelector(`[aria-controls="${menu.id}"]`)?.setAttribute('aria-expanded', 'false');
  }
}
