// The gateway's HTTP side, and the token that opens it.
//
// The token comes in the fragment, which browsers send to nobody. It moves to this tab's storage at
// once and leaves the address bar, so that a screenshot or a copied link does not give it away.

const TOKEN = 'holdfast.token';

export function takeFragment() {
  const given = new URLSearchParams(location.hash.slice(1));
  if (given.has('token')) {
    sessionStorage.setItem(TOKEN, given.get('token'));
    given.delete('token');
    rewrite(given);
  }
  return { session: given.get('session'), mode: given.get('mode') === 'view' ? 'view' : 'write' };
}

export function rememberSession(session, mode) {
  const fragment = new URLSearchParams({ session });
  if (mode === 'view') fragment.set('mode', mode);
  rewrite(fragment);
}

export function forgetSession() {
  rewrite(new URLSearchParams());
}

function rewrite(fragment) {
  const text = fragment.toString();
  history.replaceState(null, '', location.pathname + (text ? `#${text}` : ''));
}

export const token = () => sessionStorage.getItem(TOKEN) ?? '';

export class ApiError extends Error {
  constructor(status, { code = 'internal', message = 'the gateway failed', advice = '' } = {}) {
    super(message);
    Object.assign(this, { status, code, advice });
  }
}

async function get(path) {
  const headers = { Authorization: `Bearer ${token()}` };
  const response = await fetch(path, { headers, cache: 'no-store' });
  const body = await response.json().catch(() => ({}));
  if (!response.ok) throw new ApiError(response.status, body.error);
  return body;
}

const pathOf = (session) => `/api/v1/sessions/${encodeURIComponent(session)}`;

export const sessions = async () => (await get('/api/v1/sessions')).sessions;
export const info = (session) => get(pathOf(session));

export function streamAddress(session) {
  return {
    url: `ws://${location.host}${pathOf(session)}/stream`,
    protocols: ['holdfast.v1', `bearer.${token()}`],
  };
}

/** Why a stream could not be opened, in the words of stream.js. */
export async function verdict(session) {
  try {
    const { state } = await info(session);
    return state?.activity === 'ended' ? 'ended' : 'away';
  } catch (error) {
    if (error.status === 401) return 'refused';
    if (error.status === 404 || error.status === 400) return 'gone';
    return 'away';
  }
}
