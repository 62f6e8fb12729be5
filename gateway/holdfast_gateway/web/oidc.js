// Signing in at an OpenID Connect issuer: the authorization code flow with PKCE, as a public
// client. The ID token it ends with is what the API server knows people by.
//
// Invariants
// - What the issuer sends back counts only with the `state` of a flow that this tab began.
// - The code is exchanged only with the verifier that never left this tab, and only at the issuer's
//   own origin, which is also all that the page's policy lets it connect to.
// - The ID token must carry this flow's nonce, this issuer and this client.

import { claims } from './credentials.js';

const BEGUN = 'holdfast.oidc';
const TEN_MINUTES = 600000;

export class OidcError extends Error {
  constructor(message, advice = 'Try again; if it stays so, sign in with a token.') {
    super(message);
    Object.assign(this, { code: 'unauthenticated', advice });
  }
}

const base64url = (bytes) =>
  btoa(String.fromCharCode(...new Uint8Array(bytes))).replace(/\+/g, '-').replace(/\//g, '_').replace(/=+$/, '');
const random = () => base64url(crypto.getRandomValues(new Uint8Array(32)));

async function answered(request, what) {
  let response;
  try {
    response = await request;
  } catch {
    throw new OidcError(`the issuer's ${what} cannot be reached`, 'It must be up, and allow this page’s origin (CORS).');
  }
  const body = await response.json().catch(() => ({}));
  if (!response.ok) throw new OidcError(body.error_description ?? body.error ?? `the issuer's ${what} failed`);
  return body;
}

async function discover({ issuer }) {
  const found = await answered(fetch(`${issuer.replace(/\/$/, '')}/.well-known/openid-configuration`), 'configuration');
  if (found.issuer !== issuer) throw new OidcError(`the issuer calls itself ${String(found.issuer).slice(0, 100)}`, 'Set it so in the gateway.');
  const { origin } = new URL(issuer);
  for (const end of [found.authorization_endpoint, found.token_endpoint]) {
    if (!URL.canParse(end) || new URL(end).origin !== origin) {
      throw new OidcError("the issuer sends people to another site", 'Its endpoints must be at its own origin.');
    }
  }
  return found;
}

const home = () => location.origin + location.pathname;

/** The address to go to. `back` is the fragment to come back to. */
export async function begin(way, back, kept) {
  if (!crypto.subtle) throw new OidcError('this needs a secure connection', 'Open the page by https.');
  const { authorization_endpoint: endpoint } = await discover(way);
  const flow = { issuer: way.issuer, state: random(), nonce: random(), verifier: random(), back, kept, began: Date.now() };
  const challenge = base64url(await crypto.subtle.digest('SHA-256', new TextEncoder().encode(flow.verifier)));
  sessionStorage.setItem(BEGUN, JSON.stringify(flow));
  const address = new URL(endpoint);
  const asked = {
    response_type: 'code', client_id: way.client_id, redirect_uri: home(), scope: way.scopes ?? 'openid',
    state: flow.state, nonce: flow.nonce, code_challenge: challenge, code_challenge_method: 'S256',
  };
  for (const [name, value] of Object.entries(asked)) address.searchParams.set(name, value);
  return address.href;
}

/** Whether the page was opened by an issuer that sends somebody back. */
export function returning(query) {
  const given = new URLSearchParams(query);
  return given.has('state') && (given.has('code') || given.has('error'));
}

const begun = () => JSON.parse(sessionStorage.getItem(BEGUN) ?? 'null');

/** Where the person wanted to go, however the flow ends. */
export const destination = () => begun()?.back || location.hash;

/** `{token, kept}` of the flow that the query ends. */
export async function finish(ways, query) {
  const given = new URLSearchParams(query);
  const flow = begun();
  sessionStorage.removeItem(BEGUN);
  const way = ways.find(({ kind, issuer }) => kind === 'oidc' && issuer === flow?.issuer);
  if (!flow || !way || given.get('state') !== flow.state || Date.now() - flow.began > TEN_MINUTES) {
    throw new OidcError('this sign-in was not begun here, or too long ago');
  }
  if (given.has('error')) throw new OidcError(given.get('error_description') ?? given.get('error'));
  const { token_endpoint: endpoint } = await discover(way);
  const body = new URLSearchParams({
    grant_type: 'authorization_code', code: given.get('code'), client_id: way.client_id,
    redirect_uri: home(), code_verifier: flow.verifier,
  });
  const { id_token: token } = await answered(fetch(endpoint, { method: 'POST', body }), 'token endpoint');
  check(claims(token ?? '') ?? {}, way, flow);
  return { token, kept: flow.kept };
}

function check(said, way, flow) {
  const meant = [said.aud].flat().includes(way.client_id);
  if (said.iss !== way.issuer || said.nonce !== flow.nonce || !meant) {
    throw new OidcError('the issuer sent a token that is not of this sign-in');
  }
}
