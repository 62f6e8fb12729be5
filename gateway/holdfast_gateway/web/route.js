// Where the address points: `#/team/build`, on one machine `#/build`, and `#/` to all of them.
// `?view` after it: to watch only. No DOM.
//
// The link that holdfast prints on one machine is `#token=…&session=build`.

const NAME = /^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$/;

/** `{namespace, name}`, of which the former is null where there are none. */
export const keyOf = ({ namespace, name }) => (namespace ? `${namespace}/${name}` : name);

/** An entry of the list as what names it. */
export const named = (entry) => ({ namespace: entry.namespace ?? null, name: entry.session });

/** `{session, mode, token}`; `session` null: all; `wrong`: an address that names nothing. */
export function parse(hash) {
  const text = hash.replace(/^#/, '');
  return text.startsWith('/') ? parsePath(text) : parseLink(new URLSearchParams(text));
}

function parsePath(text) {
  const [path, query = ''] = text.split('?');
  const parts = path.split('/').filter(Boolean);
  const mode = query === 'view' ? 'view' : 'write';
  if (parts.length === 0) return { session: null, mode: 'write', token: null };
  const [name, namespace = null] = parts.toReversed();
  if (parts.length > 2 || !parts.every((part) => NAME.test(part))) {
    return { session: null, mode, token: null, wrong: path.slice(1, 130) };
  }
  return { session: { namespace, name }, mode, token: null };
}

function parseLink(given) {
  const name = given.get('session');
  return {
    session: name ? { namespace: null, name } : null,
    mode: given.get('mode') === 'view' ? 'view' : 'write',
    token: given.get('token'),
  };
}

export function format(session, mode = 'write') {
  if (session === null) return '#/';
  return `#/${keyOf(session)}${mode === 'view' ? '?view' : ''}`;
}

export const same = (a, b) => a !== null && b !== null && keyOf(a) === keyOf(b);
