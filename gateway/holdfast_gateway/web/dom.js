// Elements, and text made safe for them. Text from a session is only ever set as text.

const SVG = 'http://www.w3.org/2000/svg';

export const byId = (id) => document.getElementById(id);

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

export const button = ({ label, act }, className = '') =>
  element('button', { type: 'button', class: className, onclick: act }, label);

// Titles and names come from programs: no control characters, no text-direction tricks.
export function harmless(text, limit = 120) {
  const clean = String(text ?? '').replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu, ' ').trim();
  return clean.length > limit ? `${clean.slice(0, limit - 1)}…` : clean;
}

/** The sentence of somebody who does not begin or end it like one. */
export function sentence(text, limit = 300) {
  const shown = harmless(text, limit).replace(/\.$/, '');
  if (!shown) return '';
  const name = /^\S*[:/@\d]/.test(shown); // it begins with somebody's name
  return `${name ? shown.charAt(0) : shown.charAt(0).toUpperCase()}${shown.slice(1)}.`;
}

export function age(seconds) {
  if (!(seconds >= 0)) return '';
  if (seconds < 60) return 'just now';
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h`;
  return `${Math.floor(seconds / 86400)} d`;
}

// The same person has the same colour everywhere.
export function hue(text) {
  let hash = 7;
  for (const char of text) hash = (hash * 31 + char.codePointAt(0)) % 360;
  return hash;
}

/** What to show of an actor: the session says it, so that no two names look the same. */
export const shownName = (one) => harmless(one?.shown || one?.actor, 200);

/** Whether two are one: the whole name, and the UID. */
export const sameActor = (a, b) => Boolean(a && b) && a.actor === b.actor && (a.uid ?? '') === (b.uid ?? '');

/** `system:serviceaccount:team:ana` is `ana (team)` where there is little room. No other name is
 * shown with parentheses. */
export function shortName(shown) {
  const clean = harmless(shown, 200);
  const account = /^system:serviceaccount:([^:]+):([^:]+)$/.exec(clean);
  return account ? `${account[2]} (${account[1]})` : clean || 'somebody';
}

export function face(actor, attributes = {}) {
  const name = shortName(actor);
  return element(
    'span',
    { class: 'face', style: `--hue: ${hue(harmless(actor, 200))}`, 'aria-hidden': 'true', ...attributes },
    [...name][0],
  );
}

/** A command to be copied: with a button where the browser lets one, and by hand anyway. */
export function copyable(text) {
  const copy = element('button', { type: 'button', class: 'copy', 'aria-label': `Copy: ${text}`, title: 'Copy' }, icon('copy'));
  copy.addEventListener('click', async () => {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      getSelection()?.selectAllChildren(copy.previousElementSibling);
      return;
    }
    copy.replaceChildren(icon('check'));
    setTimeout(() => copy.replaceChildren(icon('copy')), 1500);
  });
  return element('span', { class: 'copyable' }, element('code', {}, text), copy);
}

/** Makes `parent`'s children those of `items`, `{key, mark, make}`: one that has not changed (its
 * `mark`) stays the element that it is, and keeps its focus and its place. */
export function keep(parent, items) {
  const old = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let at = parent.firstElementChild;
  for (const { key, mark, make } of items) {
    const found = old.get(key);
    old.delete(key);
    const fresh = found?.dataset.mark === mark ? found : make();
    fresh.dataset.key = key;
    fresh.dataset.mark = mark;
    if (found && found !== fresh) {
      const focused = found.contains(document.activeElement);
      if (found === at) at = fresh;
      found.replaceWith(fresh);
      if (focused) (fresh.matches('a, button') ? fresh : fresh.querySelector('a, button'))?.focus();
    }
    if (fresh === at) at = at.nextElementSibling;
    else parent.insertBefore(fresh, at);
  }
  for (const gone of old.values()) gone.remove();
}
