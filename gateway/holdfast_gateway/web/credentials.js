// The token that opens the gateway. In this page's memory; in this tab's storage too if the person
// wants that, so that it outlives a reload; nowhere else. No DOM.

const KEPT = 'holdfast.token';
// What fits both a header and a WebSocket's subprotocol, which is how a page must send it.
const SENDABLE = /^[\w.~!#$%&'*+^`|-]+$/;
const TOO_LONG = 16 << 10;

let memory = null;

export function token() {
  memory ??= sessionStorage.getItem(KEPT) ?? '';
  return memory;
}

export function take(given, { kept }) {
  memory = given;
  if (kept) sessionStorage.setItem(KEPT, given);
  else sessionStorage.removeItem(KEPT);
}

export function forget() {
  take('', { kept: false });
  sessionStorage.removeItem(KEPT);
}

/** What a JWT says of itself; null if it is none. For people: nothing is decided by it. */
export function claims(given) {
  try {
    const [, body] = given.split('.');
    const bytes = Uint8Array.from(atob(body.replace(/-/g, '+').replace(/_/g, '/')), (c) => c.charCodeAt(0));
    const said = JSON.parse(new TextDecoder().decode(bytes));
    return said !== null && typeof said === 'object' ? said : null;
  } catch {
    return null;
  }
}

/** Who a token is of, and until when, as far as it says: `{name, until}`. */
export function holder(given) {
  const said = claims(given) ?? {};
  const name = said.preferred_username ?? said.email ?? said.sub ?? '';
  return { name: String(name), until: Number.isFinite(said.exp) ? said.exp * 1000 : null };
}

/** What is wrong with a pasted token, as an error like the gateway's; null if nothing is seen. */
export function problem(given, now, audience) {
  const advice = `the command below makes one; its audience must be ${audience}`;
  const wrong = (message) => ({ code: 'unauthenticated', message, advice });
  if (given === '') return wrong('there is no token');
  if (given.length > TOO_LONG || !SENDABLE.test(given)) return wrong('this is not a token: it has characters that no token has');
  const { until } = holder(given);
  if (until !== null && until <= now) return wrong('this token has expired');
  return null;
}
