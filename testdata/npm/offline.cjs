// Loaded into third-party servers with node --require: nothing reaches the
// network, and the file OFFLINE_RECORD says in which processes this was loaded
// and what was tried in them. Programs other than node are not seen.
const { appendFileSync } = require('node:fs');
const { basename } = require('node:path');

const note = (what) => appendFileSync(process.env.OFFLINE_RECORD, `${what} in ${basename(process.argv[1] ?? 'node')}\n`);
const error = () => Object.assign(new Error('no network in this test'), { code: 'ENETUNREACH' });

note('loaded');

require('node:net').Socket.prototype.connect = function (...args) {
  note('connect');
  const done = args.at(-1);
  if (typeof done === 'function') this.once('connect', done);
  return this.destroy(error());
};

require('node:dgram').Socket.prototype.send = function (...args) {
  note('send');
  const done = args.at(-1);
  if (typeof done === 'function') process.nextTick(done, error());
};

const dns = require('node:dns');
for (const name of ['lookup', 'resolve', 'resolve4', 'resolve6']) {
  dns[name] = (...args) => {
    note(name);
    process.nextTick(args.at(-1), error());
  };
  dns.promises[name] = async () => {
    note(name);
    throw error();
  };
}
