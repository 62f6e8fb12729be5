// The sign-in view: a dialog over whatever was there, which stays behind it.

import { byId, copyable, element, icon, sentence } from './dom.js';
import * as credentials from './credentials.js';
import * as oidc from './oidc.js';

/** Shows it, and calls `done(token, kept)` with what the person gave. `error`: why it is shown. */
export function show(ways, error, done) {
  const dialog = byId('signin');
  const audience = ways.find(({ kind }) => kind === 'token')?.audience;
  const kept = element('input', { type: 'checkbox', id: 'keep' });
  const parts = [
    ...ways.filter(({ kind }) => kind === 'oidc').map((way) => issuerButton(way, kept)),
    audience ? tokenForm(audience, kept, done) : null,
    ways.some(({ kind }) => kind === 'proxy') ? proxyButton() : null,
  ].filter(Boolean);
  const several = parts.flatMap((part, index) => (index === 0 ? [part] : [element('div', { class: 'or', 'aria-hidden': 'true' }, 'or'), part]));
  const keep = element('label', { class: 'check' }, kept, element('span', {}, 'Keep me signed in until this tab is closed'));
  dialog.replaceChildren(
    element('div', { class: 'sign' }, icon('key')),
    element('h1', { id: 'signin-title' }, 'Sign in'),
    element('p', { class: 'lead' }, 'Your Kubernetes identity opens the sessions you may see.'),
    element('div', { class: 'complaint', role: 'alert' }),
    ...several,
    ...(audience || ways.some(({ kind }) => kind === 'oidc') ? [keep] : []),
  );
  complain(error);
  if (!dialog.open) dialog.showModal();
}

export const shown = () => byId('signin').open;

export function hide() {
  byId('signin').replaceChildren(); // a token does not stay in a field
  byId('signin').close();
}

/** Escape leaves a dialog, but here there is nowhere to go. */
export function holdOpen() {
  const dialog = byId('signin');
  dialog.addEventListener('cancel', (event) => event.preventDefault());
  dialog.addEventListener('close', () => dialog.childElementCount > 0 && dialog.showModal());
}

export function complain(error) {
  const box = byId('signin').querySelector('.complaint');
  box.hidden = !error;
  if (error) box.replaceChildren(element('b', {}, sentence(error.message)), ' ', sentence(error.advice));
}

function tokenForm(audience, kept, done) {
  const field = element('input', {
    type: 'password', id: 'token', name: 'token', autocomplete: 'off', spellcheck: 'false', autocapitalize: 'off',
    placeholder: 'Paste it here', required: true, autofocus: true,
  });
  const form = element('form', { class: 'token' },
    element('label', { for: 'token' }, 'Kubernetes token'),
    element('div', { class: 'row' }, field, element('button', { class: 'primary' }, 'Sign in')),
    element('p', { class: 'hint' }, 'Get one for a service account of yours:'),
    copyable(`kubectl create token NAME --audience ${audience}`));
  form.addEventListener('submit', (event) => {
    event.preventDefault();
    const given = field.value.replace(/\s+/g, ''); // a terminal wraps what one copies from it
    const wrong = credentials.problem(given, Date.now(), audience);
    if (wrong) return complain(wrong);
    return done(given, kept.checked);
  });
  return form;
}

function issuerButton(way, kept) {
  const name = new URL(way.issuer).host;
  const made = element('button', { type: 'button', class: 'primary wide' }, `Continue with ${name}`);
  made.addEventListener('click', async () => {
    made.disabled = true;
    try {
      location.assign(await oidc.begin(way, location.hash, kept.checked));
    } catch (error) {
      made.disabled = false;
      complain(error);
    }
  });
  return made;
}

function proxyButton() {
  return element('button', { type: 'button', class: 'plain wide', onclick: () => location.reload() }, 'Sign in at the proxy again');
}
