// Copies what the page loads from node_modules into holdfast_gateway/web/vendor, licences included.
// Run after `npm ci`. The folder is built, not kept: git ignores it.
import { cp, mkdir, readFile, rm, writeFile } from 'node:fs/promises';

const modules = new URL('node_modules/@xterm/', import.meta.url);
const vendor = new URL('holdfast_gateway/web/vendor/', import.meta.url);

const FILES = {
  'xterm/lib/xterm.mjs': 'xterm.mjs',
  'xterm/css/xterm.css': 'xterm.css',
  'xterm/LICENSE': 'xterm.LICENSE',
  'addon-fit/lib/addon-fit.mjs': 'addon-fit.mjs',
  'addon-fit/LICENSE': 'addon-fit.LICENSE',
  'addon-web-links/lib/addon-web-links.mjs': 'addon-web-links.mjs',
  'addon-web-links/LICENSE': 'addon-web-links.LICENSE',
};

// Source maps are not shipped, and a pointer to one makes developer tools ask for it in vain.
const withoutMap = (text) => text.replace(/^\/\/# sourceMappingURL=.*$/m, '').trimEnd() + '\n';

await rm(vendor, { recursive: true, force: true });
await mkdir(vendor, { recursive: true });
for (const [from, to] of Object.entries(FILES)) {
  if (to.endsWith('.mjs')) {
    await writeFile(new URL(to, vendor), withoutMap(await readFile(new URL(from, modules), 'utf8')));
  } else {
    await cp(new URL(from, modules), new URL(to, vendor));
  }
}
