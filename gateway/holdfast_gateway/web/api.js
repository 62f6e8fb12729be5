// The gateway's HTTP side. A session is `{namespace, name}`; on one machine it has no namespace.

import * as credentials from './credentials.js';

const API = '/api/v1';
// Longer than the gateway takes to say that a session does not answer.
const PATIENCE_MS = 20000;

export class ApiError extends Error {
  constructor(status, { code = 'internal', message = 'the gateway failed', advice = '' } = {}) {
    super(message);
    Object.assign(this, { status, code, advice });
  }
}

async function ask(path, method) {
  const token = credentials.token();
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  const signal = AbortSignal.timeout(PATIENCE_MS);
  const response = await fetch(API + path, { method, headers, cache: 'no-store', signal });
  const body = await response.json().catch(() => ({}));
  if (!response.ok) throw new ApiError(response.status, body.error);
  return body;
}

const get = (path) => ask(path, 'GET');

function pathOf({ namespace, name }) {
  const within = namespace ? `/namespaces/${encodeURIComponent(namespace)}` : '';
  return `${within}/sessions/${encodeURIComponent(name)}`;
}

export const ways = async () => (await get('/login')).ways;
export const sessions = async () => (await get('/sessions')).sessions;
export const info = (session) => get(pathOf(session));
export const graph = (session) => get(`${pathOf(session)}/graph`);
export const wake = (session) => ask(`${pathOf(session)}/wake`, 'POST');
export async function journal(session, limit) {
  const { records, shown } = await get(`${pathOf(session)}/journal?limit=${limit}`);
  return records.map((record) => ({ ...record, shown: shown?.[record.actor] }));
}

export function streamAddress(session) {
  const token = credentials.token();
  const scheme = location.protocol === 'https:' ? 'wss' : 'ws';
  return {
    url: `${scheme}://${location.host}${API}${pathOf(session)}/stream`,
    protocols: ['holdfast.v1', ...(token ? [`bearer.${token}`] : [])],
  };
}

// Phases in which a session is not there yet, and will be.
const COMING = new Set(['Pending', 'Starting', 'Moving', 'Restoring', 'Suspended', 'Lost']);
const VERDICTS = {
  unauthenticated: 'refused',
  forbidden: 'forbidden',
  not_found: 'gone',
  bad_name: 'gone',
  ended: 'ended',
  unsupported: 'unsupported',
};

/** Whether it goes on only when somebody says so, or not by this person's right. */
export const asleep = ({ suspended }) => Boolean(suspended) && (suspended.wakes === 'asked' || (suspended.wakes === 'needed' && !suspended.may));

/** Why a stream cannot be opened, in the words of stream.js: `{verdict, error, info}`. */
export async function verdict(session) {
  try {
    const found = await info(session);
    if (found.state?.activity === 'ended') return { verdict: 'ended', info: found };
    if (asleep(found)) return { verdict: 'asleep', info: found };
    return { verdict: COMING.has(found.phase) ? 'coming' : 'away', info: found };
  } catch (error) {
    return { verdict: VERDICTS[error.code] ?? 'away', error };
  }
}
