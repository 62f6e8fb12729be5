// The page of all sessions that one may see: grouped by namespace, filtered by a word, walked with
// the arrow keys. It is made once and kept up to date, so that a glance, a focus and what is typed
// in the filter stay.

import { age, byId, element, face, harmless, icon, keep, shortName, shownName } from './dom.js';
import { format, keyOf, named } from './route.js';
import { badge, showPage } from './view.js';

const MOST_FACES = 4;

/** Whether a session answers to all words: of its name, state, command, title, people, node. */
export function matches(entry, words) {
  const { session, namespace, title, command, phase, node, state, clients } = entry;
  const people = (clients ?? []).map(shownName);
  const text = [session, namespace, title, command, phase, node, state?.activity, state?.sentence, people]
    .flat().join(' ').toLowerCase();
  return words.toLowerCase().split(/\s+/).every((word) => text.includes(word));
}

/** [[namespace, entries]], both in the order of their names. */
export function grouped(entries) {
  const groups = new Map();
  for (const entry of entries) {
    const namespace = entry.namespace ?? '';
    if (!groups.has(namespace)) groups.set(namespace, []);
    groups.get(namespace).push(entry);
  }
  const byName = (a, b) => (a.session < b.session ? -1 : 1);
  return [...groups].sort(([a], [b]) => (a < b ? -1 : 1)).map(([name, found]) => [name, found.toSorted(byName)]);
}

function people(clients) {
  const actors = [...new Set(clients.map(shownName))];
  const label = actors.length === 0 ? 'nobody attached' : actors.map(shortName).join(', ');
  const rest = actors.length - MOST_FACES;
  return element('span', { class: 'people', title: harmless(actors.join(', '), 300) || label },
    ...actors.slice(0, MOST_FACES).map((actor) => face(actor)),
    element('span', { class: actors.length === 1 ? '' : actors.length === 0 ? 'nobody' : 'unseen' }, label),
    rest > 0 ? element('span', { 'aria-hidden': 'true' }, `+${rest}`) : null);
}

// The phase only where the badge does not say it.
function where({ node, epoch, phase, state }) {
  const own = phase && phase !== 'Running' && phase.toLowerCase() !== state?.activity ? phase : null;
  const facts = [node, Number.isInteger(epoch) ? `epoch ${epoch}` : null, own];
  return facts.filter(Boolean).map((fact) => harmless(fact, 63)).join(' · ');
}

// "is Suspended" says no more than the badge does.
const said = (state) => (/\.$/.test(state?.sentence ?? '') ? harmless(state.sentence, 160) : '');

function card(entry) {
  const session = named(entry);
  const command = Array.isArray(entry.command) ? harmless(entry.command.join(' '), 120) : '';
  const ended = entry.state?.activity === 'ended';
  return element('li', {}, element('a', { class: 'card', href: format(session), 'aria-label': keyOf(session) },
    element('span', { class: 'what' }, element('b', {}, entry.session), element('small', {}, harmless(entry.title) || command)),
    element('span', { class: 'does' }, badge(entry.state), element('small', {}, said(entry.state))),
    ended ? element('span', { class: 'people' }) : people(entry.clients ?? []),
    element('span', { class: 'meta' }, element('span', {}, where(entry)), element('span', {}, age(Date.now() / 1000 - entry.created)))));
}

// What of an entry is shown: no byte counter makes a row anew.
const markOf = ({ title, command, state, clients, node, epoch, phase, created }) =>
  JSON.stringify([title, command, state, (clients ?? []).map(shownName), node, epoch, phase, age(Date.now() / 1000 - created)]);

export class SessionList {
  #entries = [];
  #filter = element('input', {
    type: 'search', id: 'filter', placeholder: 'Filter', 'aria-label': 'Filter sessions', autocomplete: 'off', spellcheck: 'false', enterkeyhint: 'go',
  });
  #count = element('span', { class: 'count', role: 'status' });
  #none = element('p', { class: 'none', hidden: true });
  #groups = element('div', { class: 'groups' });
  #box;

  constructor() {
    const search = element('label', { class: 'search' }, icon('search'), this.#filter, element('kbd', { 'aria-hidden': 'true' }, '/'));
    this.#box = element('div', { class: 'chooser' },
      element('header', {}, element('h1', {}, 'Sessions'), this.#count, search), this.#none, this.#groups);
    this.#filter.addEventListener('input', () => this.#draw());
    this.#box.addEventListener('keydown', (event) => this.#walk(event));
    document.addEventListener('keydown', (event) => {
      if (event.key !== '/' || !this.shown || event.target.matches?.('input, textarea')) return;
      event.preventDefault();
      this.#filter.focus();
    });
  }

  get shown() {
    return this.#box.isConnected && !byId('page').hidden;
  }

  show(entries) {
    this.#entries = entries;
    this.#draw();
    document.title = 'Sessions · holdfast';
    showPage('sessions', this.#box);
  }

  #draw() {
    const words = this.#filter.value.trim();
    const found = this.#entries.filter((entry) => matches(entry, words));
    this.#count.textContent = words ? `${found.length} of ${this.#entries.length}` : String(found.length);
    this.#none.hidden = found.length > 0;
    this.#none.textContent = `No session matches “${harmless(words, 60)}”.`;
    keep(this.#groups, grouped(found).map(([namespace]) => ({ key: namespace, mark: '', make: () => this.#group(namespace) })));
    for (const [namespace, mine] of grouped(found)) {
      const group = [...this.#groups.children].find(({ dataset }) => dataset.key === namespace);
      if (namespace) group.querySelector('.count').textContent = String(mine.length);
      keep(group.querySelector('.cards'), mine.map((entry) => ({ key: entry.session, mark: markOf(entry), make: () => card(entry) })));
    }
  }

  #group(namespace) {
    const heading = element('h2', {}, icon('namespace'), element('b', {}, harmless(namespace, 63)), element('span', { class: 'count' }));
    return element('section', { 'aria-label': namespace ? `Namespace ${namespace}` : 'Sessions' },
      namespace ? heading : null, element('ul', { class: 'cards' }));
  }

  #walk(event) {
    const cards = [...this.#box.querySelectorAll('.card')];
    if (event.target === this.#filter && event.key === 'Enter') cards[0]?.click();
    if (event.key === 'Escape') {
      this.#filter.value = '';
      this.#draw();
    }
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const at = cards.indexOf(document.activeElement) + step;
    if (at < 0) this.#filter.focus();
    else cards[Math.min(at, cards.length - 1)]?.focus();
  }
}
