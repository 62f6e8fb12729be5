// What a person is told of a session's state: words and steps. Pure: facts in, words out.

import { harmless, sameActor, sentence, shortName, shownName } from './dom.js';

// Half a second of trouble is not worth a word: a restarted sidecar or gateway is back by then.
export const QUIET_MS = 500;
// A move that has closed the connection is still a move for so long.
const MOVING_MS = 180000;

export const ACTIVITIES = {
  running: 'running',
  prompt: 'at prompt',
  reading: 'waiting for input',
  password: 'waiting for a password',
  frozen: 'frozen',
  moving: 'moving',
  saving: 'being stored',
  suspended: 'suspended',
  restoring: 'being restored',
  pending: 'pending',
  starting: 'starting',
  lost: 'host lost',
  ended: 'ended',
  failed: 'failed',
  unavailable: 'unavailable',
};

export const activityOf = (state) => (Object.hasOwn(ACTIVITIES, state?.activity ?? '') ? state.activity : 'unavailable');

const SIGNALS = { 1: 'SIGHUP', 2: 'SIGINT', 3: 'SIGQUIT', 6: 'SIGABRT', 9: 'SIGKILL', 11: 'SIGSEGV', 15: 'SIGTERM' };
const signalName = (signal) => SIGNALS[signal] ?? (/^\d+$/.test(signal) ? `signal ${signal}` : harmless(signal, 12));

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

// Phases on the way to a session that is there: what is told of each, and which step it is.
const WAYS = {
  waking: { title: 'Waking up', text: 'It was stored to free its node. It goes on exactly where it was.', steps: ['stored', 'restoring', 'live'] },
  restoring: { title: 'Being restored', text: 'It is brought back from a checkpoint.', steps: ['found', 'restoring', 'live'] },
  moving: { title: 'Moving to another node', text: 'Everything goes along. What you type is kept and sent there.', steps: ['leaving', 'on its way', 'live'] },
  starting: { title: 'Starting', text: 'Its pod is being made ready.', steps: ['scheduled', 'starting', 'live'] },
  lost: { title: 'Its node was lost', text: 'It is brought back from its last checkpoint as soon as that is safe.', steps: ['waiting', 'restoring', 'live'] },
};
const PHASES = {
  Suspended: ['waking', 0],
  Restoring: ['restoring', 1],
  Moving: ['moving', 1],
  Pending: ['starting', 0],
  Starting: ['starting', 1],
  Lost: ['lost', 0],
};

/** `way` is the one it was on before: waking passes through Restoring and Starting. */
export function onItsWay(phase, way = null) {
  if (!Object.hasOwn(PHASES, phase ?? '')) return null;
  const [own, step] = PHASES[phase];
  return own === 'restoring' || (own === 'starting' && way !== null) ? { way: way ?? own, step: 1 } : { way: own, step };
}

/** What stands over the terminal of a session that sleeps until somebody wakes it. */
export function suspendedOf({ wakes, since, may }) {
  const when = since ? `, ${harmless(since, 40)}` : '';
  const why = wakes === 'asked' ? `Somebody suspended it${when}.` : `Nobody used it${when}.`;
  return { title: 'Suspended', text: may ? `${why} It goes on where it was.` : `${why} To wake it needs the right to create sessions/wake.` };
}

/** How much of a session that moves has been copied; '' if that is not known. Not all, as long as it moves. */
export function percentOf({ sent, expected }) {
  return sent >= 0 && expected > 0 ? `${Math.min(99, Math.floor((100 * sent) / expected))} %` : '';
}

/**
 * What stands over the terminal; null: nothing.
 * facts: {link, until, now, since, attached, news, newsSince, progress, phase, way}
 *   link: a State of stream.js; since: when it was last connected, or began to be
 *   attached: whether the screen has been seen; news: 'moving', 'saving' or null
 */
export function noticeOf({ link, until = 0, now, since, attached, news, newsSince, progress = '', phase, way }) {
  const elapsed = (from) => Math.max(0, Math.floor((now - from) / 1000));
  const copied = progress && link === 'connected' ? `${progress} has been copied. What you type is kept and sent there.` : WAYS.moving.text;
  const moving = { ...WAYS.moving, text: copied, step: link === 'connected' ? 0 : 1, elapsed: elapsed(newsSince) };
  if (link === 'connected' || link === 'behind') {
    if (news === 'moving') return moving;
    if (news !== 'saving') return null;
    return { title: 'Being stored', text: 'What you type waits for a moment.', elapsed: elapsed(newsSince), busy: true };
  }
  if (link !== 'connecting' && link !== 'waiting') return null;
  const coming = onItsWay(phase, way);
  if (coming) return { ...WAYS[coming.way], step: coming.step, elapsed: elapsed(since) };
  if (news === 'moving' && now - newsSince < MOVING_MS) return moving;
  if (now - since < QUIET_MS) return null;
  if (!attached && link === 'connecting') return { title: 'Connecting', text: '', busy: true };
  const seconds = Math.ceil((until - now) / 1000);
  const next = link === 'waiting' && seconds > 0 ? `Trying again in ${seconds} s` : 'Reconnecting…';
  const text = attached ? `${next}. What you type is kept.` : next;
  return { title: attached ? 'Connection lost' : 'No connection', text, busy: true, retry: true };
}

/** The line under the terminal of somebody who cannot type now, or whom others ask for the turn;
 * null: there is nothing to say. `act` is what its button does, `also` another; `may`: he can type.
 * facts: {mode, holder, own, why, ended, here, asking, kept}; people as the session names them
 *   here: whether its holder is; asking: who would like to have it; kept: who was told "not now" */
export function standingOf({ mode, holder, own, why, ended, here = false, asking = [], kept = [] }) {
  if (ended) return null;
  if (mode === 'view' && why) {
    return { sign: 'eye', text: 'You may look, not type.', detail: `${sentence(why.message)} ${sentence(why.advice)}`.trim(), act: 'type', label: 'Try again' };
  }
  if (mode === 'view') return { sign: 'eye', text: 'You are watching.', detail: '', act: 'type', label: 'Type here too' };
  if (!holder || !own) return null;
  const among = (one, all) => all.some((other) => sameActor(one, other));
  return sameActor(holder, own) ? askedOf(asking.filter((one) => !among(one, kept))) : without(holder, here, among(own, asking));
}

function without(holder, here, asked) {
  const line = { sign: 'pen', text: `${shortName(shownName(holder))} has the turn.`, full: shownName(holder), detail: 'What you type is not taken.' };
  const take = { act: 'take', label: asked || !here ? 'Take the turn' : 'Take it' };
  if (asked) return { ...line, detail: 'You have asked for it.', ...take };
  return here ? { ...line, act: 'ask', label: 'Ask for it', also: take } : { ...line, ...take };
}

function askedOf([first, ...rest]) {
  if (first === undefined) return null;
  const detail = rest.length > 0 ? `So do ${rest.length} more.` : 'You have it.';
  return {
    sign: 'hand', text: `${shortName(shownName(first))} asks for the turn.`, full: shownName(first), detail, may: true,
    act: 'give', label: 'Give it', to: first, also: { act: 'keep', label: 'Not now' },
  };
}

// Errors that leave nothing to show but themselves.
export function messageOf(state, error, session) {
  const told = `${sentence(error?.message)} ${sentence(error?.advice)}`.trim();
  if (state === 'forbidden') {
    return { sign: 'lock', alarm: true, title: 'Not for you to see', text: told || `You may not look at ${session}.` };
  }
  if (state === 'unsupported') {
    return {
      sign: 'mark', alarm: true, title: 'This page and the gateway differ', reload: true,
      text: `${told} One of them is of another version. Reload to get the gateway’s own page; your session goes on.`.trim(),
    };
  }
  return {
    sign: 'mark', title: 'No such session',
    text: `There is no session named “${harmless(session, 130)}” here. It may have been removed.`,
  };
}
