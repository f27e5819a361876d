// Sends requests to an engine and prints each output as one line of JSON, in the order of the requests:
//
//     node generate.js ADDRESS '{"prompt_token_ids": [3, 1, 4], "options": {"max_tokens": 20}}' '{"prompt": "def f():"}'

import { Client } from "./client.js";

async function answer(client, name, request) {
  const ids = [];
  let text = "";
  for await (const message of client.submit(name, request)) {
    if (message.type === "Tokens") ids.push(...message.token_ids);
    text += message.text ?? "";
    if (message.type === "Finished") return { name, state: message.state, reason: message.reason, ids, text };
  }
}

const [address, ...requests] = process.argv.slice(2);
const client = new Client(address);
try {
  const answers = requests.map((one, index) => answer(client, `node-${index}`, JSON.parse(one)));
  for (const one of await Promise.all(answers)) console.log(JSON.stringify(one));
} finally {
  await client.close();
}
