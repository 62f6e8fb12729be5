// The process graph as a tree, and what it listens on. Pure: the gateway's answer in, rows out.

import { harmless } from './dom.js';

/** [{process, depth}], parents before children, in the order they were started. */
export function rows({ processes = [] }) {
  const known = new Set(processes.map(({ pid }) => pid));
  const children = new Map();
  for (const process of processes) {
    const parent = known.has(process.ppid) && process.ppid !== process.pid ? process.ppid : 0;
    if (!children.has(parent)) children.set(parent, []);
    children.get(parent).push(process);
  }
  const found = [];
  const walk = (pid, depth) => {
    const mine = children.get(pid) ?? [];
    children.delete(pid); // so that a circle, which a racy look could show, ends
    for (const process of mine.toSorted((a, b) => a.started_ms - b.started_ms || a.pid - b.pid)) {
      found.push({ process, depth });
      walk(process.pid, depth + 1);
    }
  };
  walk(0, 0);
  return found;
}

/** What is listened on, by TCP first: [{protocol, label, name, pid}]. */
export function ports({ processes = [] }) {
  const found = new Map();
  for (const { pid, name, listening = [] } of processes) {
    for (const { protocol, address, port } of listening) {
      const label = protocol === 'unix' ? harmless(address, 200) : `${place(address)}:${port}`;
      // A forked server shows in each of its children; the first is who opened it.
      if (!found.has(label)) found.set(label, { protocol, label, name: harmless(name, 32), pid, port });
    }
  }
  const order = ({ protocol }) => (protocol === 'unix' ? 1 : 0);
  return [...found.values()].sort((a, b) => order(a) - order(b) || (a.port ?? 0) - (b.port ?? 0));
}

const place = (address) => (address === '0.0.0.0' || address === '::' ? '*' : address.includes(':') ? `[${address}]` : address);

const STATES = { R: 'running', T: 'stopped', t: 'being traced', Z: 'ended, not yet collected', D: 'waiting for a disk', I: 'idle' };
const CHANNELS = [
  [/^(hrtimer_nanosleep|do_nanosleep)/, 'sleeping'],
  [/^(do_wait|kernel_wait)/, 'waiting for a child'],
  [/^(pipe_|anon_pipe)/, 'waiting on a pipe'],
  [/^(futex_)/, 'waiting on a lock'],
  [/^(inet_csk_accept|unix_accept|__skb_wait|sk_wait|tcp_|unix_stream|unix_wait)/, 'waiting on a socket'],
  [/^(do_sys_poll|poll_|do_select|ep_poll|do_epoll|io_)/, 'waiting for events'],
  [/^(do_signal_stop|ptrace_stop)/, 'stopped'],
  [/^(sigsuspend|do_sigtimedwait|__do_sys_pause|sys_pause)/, 'waiting for a signal'],
  [/^(n_tty_read|wait_woken)/, 'reading the terminal'],
];

/** What a process does or waits for, by the kernel's word. */
export function doing(process, tty) {
  if (process.state in STATES) return STATES[process.state];
  const targets = new Map((process.fds ?? []).map(({ fd, target }) => [fd, target]));
  for (const { waits_on: fds = [] } of process.threads ?? []) {
    const on = fds.map((fd) => targets.get(fd)).filter(Boolean);
    if (on.some((target) => target === tty || target === '/dev/tty')) return 'reading the terminal';
  }
  return CHANNELS.find(([pattern]) => pattern.test(process.wait_channel ?? ''))?.[1] ?? 'waiting';
}

/** Its command line; short: without the folder that its program lies in. */
export function commandOf({ command = [], name }, { short = false } = {}) {
  if (command.length === 0) return `[${harmless(name, 32)}]`;
  const [program, ...rest] = command;
  return harmless([short ? program.replace(/^.*\/(?=[^/])/, '') : program, ...rest].join(' '), 400);
}

/** How much of a processor each has used since `before`, the look before this one: pid → per cent.
 * Nothing is said of one that is new, nor by a hold too old to say. */
export function loads(before, { processes = [], at }) {
  const seconds = at - before?.at;
  if (!(seconds > 0.2)) return new Map(); // two looks at once tell nothing
  const known = new Map((before.processes ?? []).map((one) => [one.pid, one]));
  const found = new Map();
  for (const { pid, started_ms, cpu_ms } of processes) {
    const then = known.get(pid);
    if (then?.started_ms !== started_ms || !Number.isFinite(cpu_ms) || !Number.isFinite(then.cpu_ms)) continue;
    found.set(pid, Math.max(0, Math.round((cpu_ms - then.cpu_ms) / seconds / 10)));
  }
  return found;
}

/** When it was started, in seconds since 1970; NaN if the sidecar is too old to say. */
export const begun = (process, { boot }) => boot + process.started_ms / 1000;
