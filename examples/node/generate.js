// Sends requests to an engine and prints each output as one line of JSON, in the order of the requests:
//
//     node generate.js ADDRESS '{"prompt_token_ids": [3, 1, 4], "options": {"max_tokens": 20}}' '{"prompt": "def f():"}'
//
// `--timeout SECONDS`, before the address, ends the wait for an engine that is not there; without it the wait has no end.

import { Client, Refused } from "./client.js";

const USAGE = `usage: node generate.js [--timeout SECONDS] ADDRESS REQUEST...
  REQUEST: JSON, such as '{"prompt": "def f():", "options": {"max_tokens": 20}}'
  SECONDS: how long to wait for the engine, at most 1000000; without it, for ever`;

/** What the command line asks for, or null when it cannot be read. */
function asked(words) {
  const timeout = words[0] === "--timeout" ? Number(words.splice(0, 2)[1]) : null;
  const [address, ...requests] = words;
  if (timeout !== null && !(timeout > 0 && timeout <= 1e6)) return null; // Node's timers count no further than 2e6
  return address && !address.startsWith("-") && requests.length > 0 ? { timeout, address, requests } : null;
}

/** The request that a word is. */
function requestOf(word) {
  let request = null;
  try {
    request = JSON.parse(word);
  } catch {} // said below
  if (request?.constructor !== Object) throw new TypeError(`${word}: expected an object in JSON`);
  return request;
}

/** Wait until the engine has answered for the first time. */
async function welcomed(client, { address, timeout }) {
  let timer;
  const late = new Promise((_, reject) => {
    const giveUp = () => reject(new TypeError(`${address}: no engine answered within ${timeout} s`));
    if (timeout !== null) timer = setTimeout(giveUp, timeout * 1000);
  });
  await Promise.race([client.welcome, late]).finally(() => clearTimeout(timer));
}

function connected(address) {
  try {
    return new Client(address);
  } catch (error) {
    throw new TypeError(`${address}: ${error.message}, expected an address such as ipc:///tmp/me/engine`);
  }
}

async function answer(client, name, request) {
  const ids = [];
  let text = "";
  for await (const message of client.submit(name, request)) {
    if (message.type === "Tokens") ids.push(...message.token_ids);
    text += message.text ?? "";
    if (message.type === "Finished") return { name, state: message.state, reason: message.reason, ids, text };
  }
}

async function main(command) {
  const requests = command.requests.map(requestOf);
  const client = connected(command.address);
  try {
    await welcomed(client, command);
    const answers = requests.map((one, index) => answer(client, `node-${index}`, one));
    for (const one of await Promise.all(answers)) console.log(JSON.stringify(one));
  } finally {
    await client.close();
  }
}

const command = asked(process.argv.slice(2));
if (command === null) {
  console.error(USAGE);
  process.exitCode = 2;
} else {
  await main(command).catch((error) => {
    console.error(error instanceof Refused || error instanceof TypeError ? error.message : error);
    process.exitCode = 1;
  });
}
