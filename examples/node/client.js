// A client of dsparkd in Node.js: docs/protocol.md in code, over one DEALER. generate.js shows how it is used.

import { decode, encode } from "@msgpack/msgpack";
import { Dealer } from "zeromq";

const HEADER = Buffer.from([...Buffer.from("DSPK"), 1]); // magic, protocol version
const PROMPTS = ["prompt", "prompt_token_ids", "messages"]; // a request has one of them
// Integers of 64 bits come as BigInt and may be given so; encode() would make floats of long numbers.
const whole = (value) => (Number.isSafeInteger(value) && Math.abs(value) >= 2 ** 32 ? BigInt(value) : value);

/** What a request or question ends with when the engine says no: `code` is stable. */
export class Refused extends Error {
  constructor({ code, message, request_id }) {
    super(`${request_id ?? "engine"}: ${code}: ${message}`);
    this.code = code;
  }
}

/** Accepted, Tokens, ..., Finished of a request, through restarts. Leaving the loop early cancels the request. */
class Stream {
  #client;
  #queue = [];
  #wake = null;
  nextIndex = 0; // the output index that comes next: where a resumed stream goes on

  constructor(client, requestId, frame) {
    this.#client = client; // frame: said again on a new connection until it is answered
    Object.assign(this, { requestId, frame });
  }

  put(item) {
    this.#queue.push(item);
    this.#wake?.();
  }

  async *[Symbol.asyncIterator]() {
    let ended = false;
    try {
      while (!ended) {
        while (this.#queue.length === 0) await new Promise((resolve) => (this.#wake = resolve));
        const item = this.#queue.shift();
        ended = item instanceof Error || item.type === "Finished";
        if (item instanceof Error) throw item;
        if (ended) this.#client.send({ type: "Heard", request_id: this.requestId }); // it need not be kept any longer
        yield item;
      }
    } finally {
      if (!ended) this.#client.cancel(this.requestId);
    }
  }
}

export class Client {
  #socket = new Dealer({ probeRouter: true, linger: 500 }); // the probe makes the engine speak first: Connected
  #streams = new Map();
  #outgoing = Promise.resolve();
  #token = null; // the resume token: who brings it is this client again
  #timer;
  #welcomed;

  constructor(address) {
    this.#socket.connect(address);
    this.welcome = new Promise((resolve, reject) => (this.#welcomed = { resolve, reject }));
    this.#receive().catch((error) => this.#fail(error));
  }

  /** `request`: one of PROMPTS, and options as in docs/protocol.md. */
  submit(requestId, { options = {}, ...request }) {
    const strange = Object.keys(request).filter((key) => !PROMPTS.includes(key));
    if (strange.length) throw new TypeError(`${requestId}: ${strange}: unknown, expected ${PROMPTS} and options`);
    const wide = Object.fromEntries(Object.entries(options).map(([name, value]) => [name, whole(value)]));
    const frame = { type: "Submit", request_id: requestId, ...request, options: wide };
    const stream = new Stream(this, requestId, frame);
    this.#streams.set(requestId, stream);
    this.welcome.then(() => this.send(frame), (error) => stream.put(error));
    return stream;
  }

  cancel = (requestId) => this.send({ type: "CancelRequest", request_id: requestId });

  /** One frame. A socket takes one send at a time, so they queue up here. */
  send(message) {
    const frame = Buffer.concat([HEADER, encode(message, { useBigInt64: true })]);
    return (this.#outgoing = this.#outgoing.then(() => this.#socket.send(frame)).catch((error) => this.#fail(error)));
  }

  async close() {
    clearInterval(this.#timer);
    await this.send({ type: "Goodbye", reason: "closed" });
    this.#socket.close();
  }

  async #receive() {
    for await (const [frame] of this.#socket) {
      if (!frame.subarray(0, HEADER.length).equals(HEADER)) throw new Error("this is no engine of protocol version 1");
      this.#feed(decode(frame.subarray(HEADER.length), { useBigInt64: true }));
    }
  }

  #feed(message) {
    const stream = this.#streams.get(message.request_id);
    if (message.type === "Connected" || message.code === "HELLO_FIRST") {
      this.send({ type: "ClientHello", version: 1, ...(this.#token && { resume_token: this.#token }) });
    } else if (message.type === "Welcome") {
      this.#welcome(message);
    } else if (message.type === "Accepted" && stream) {
      if (stream.frame) stream.put(message); // else it is the echo of a resume
      stream.frame = null;
    } else if (message.type === "Tokens" && stream && message.index === stream.nextIndex) {
      stream.nextIndex += message.token_ids.length;
      stream.put(message);
    } else if (message.type === "Finished" && stream && message.output_len === stream.nextIndex) {
      this.#streams.delete(message.request_id);
      stream.put(message);
    } else if (message.type === "Tokens" || message.type === "Finished") {
      if (stream && (message.index ?? message.output_len) > stream.nextIndex) this.#resume(stream); // a gap
    } else if (message.code === "DUPLICATE_ID" && stream?.again) {
      this.#resume(stream); // the first one was heard
    } else if (message.type === "Refused" && stream) {
      this.#streams.delete(message.request_id);
      stream.put(new Refused(message));
    } else if (message.type === "Refused") {
      if (message.code === "ENGINE_GONE") this.send({ type: "Goodbye" }); // it has been read
      this.#fail(new Refused(message));
    }
  }

  #resume = ({ requestId, nextIndex }) => this.send({ type: "ResumeRequest", request_id: requestId, from_index: nextIndex });

  /** Also after a lost connection: say again what was not answered, resume what was accepted. */
  #welcome(message) {
    clearInterval(this.#timer);
    this.#timer = setInterval(() => this.send({ type: "KeepAlive" }), message.keep_alive_s * 500);
    if (this.#token !== null) {
      for (const stream of this.#streams.values()) {
        stream.again = true;
        stream.frame ? this.send(stream.frame) : this.#resume(stream);
      }
    }
    this.#token = message.resume_token;
    this.#welcomed.resolve(message);
  }

  #fail(error) {
    this.#welcomed.reject(error);
    for (const stream of this.#streams.values()) stream.put(error);
    this.#streams.clear();
  }
}
