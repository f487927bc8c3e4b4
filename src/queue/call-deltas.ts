/** The live text of one model call until it is sent: pieces that follow each other become one, and a message is never too large. */
import { cutText, type LiveMessage, type ModelDelta } from "../domain/delta.ts";
import { wellFormedText } from "../domain/json.ts";
import type { DeltaCall } from "../engine/ports.ts";

/** Of text, as JSON: a notification may have fewer than 8,000 bytes, and the rest of a message takes some 300. */
const MAX_TEXT_BYTES = 4_096;
const MAX_NAME_BYTES = 512;
/** Text that could not be sent for so long is given up: followers see a gap, the worker's memory does not grow. */
const MAX_PENDING_CHARS = 64 * 1024;

type Piece = { -readonly [K in keyof ModelDelta]: ModelDelta[K] };

export class CallDeltas {
  readonly call: DeltaCall;
  #pending: Piece[] = [];
  #pendingChars = 0;
  #n = 0;
  /** Text was left out since the last message. */
  #skipped = false;
  #wasSent = false;
  #ended = false;

  constructor(call: DeltaCall) {
    this.call = call;
  }

  /** Nothing of it was sent yet, and something waits. */
  get isFirst(): boolean {
    return this.#n === 0 && this.#pending.length > 0;
  }

  get isEmpty(): boolean {
    return this.#pending.length === 0 && !(this.#ended && this.#wasSent);
  }

  add(delta: ModelDelta): void {
    if (this.#ended || delta.text === "") return;
    const last = this.#pending.at(-1);
    if (last?.kind === delta.kind && last.index === delta.index) last.text += delta.text;
    else this.#pending.push({ ...delta });
    this.#pendingChars += delta.text.length;
    if (this.#pendingChars > MAX_PENDING_CHARS) this.skip();
  }

  /** What came is not sent, nor what waits. */
  skip(): void {
    if (this.#ended) return;
    this.#pending = [];
    this.#pendingChars = 0;
    this.#skipped = true;
  }

  /** No delta is taken from now on. */
  end(): void {
    this.#ended = true;
  }

  /** What is to be sent now, in order. */
  drain(): LiveMessage[] {
    const { runId, turn, attempt } = this.call;
    const call = { run_id: runId, turn, attempt };
    const messages = this.#take().flatMap(({ kind, text, index, name }): LiveMessage[] =>
      pieces(wellFormedText(text)).map((piece) => ({
        is: "delta",
        ...call,
        n: this.#next(),
        kind,
        text: piece,
        ...(index === undefined ? {} : { index }),
        ...(name === undefined ? {} : { name: cutText(wellFormedText(name), MAX_NAME_BYTES)[0] }),
      })),
    );
    if (messages.length > 0) this.#wasSent = true;
    if (!this.#ended || !this.#wasSent) return messages;
    this.#wasSent = false;
    return [...messages, { is: "last", ...call }];
  }

  #next(): number {
    if (this.#skipped) this.#n++;
    this.#skipped = false;
    return this.#n++;
  }

  /** Half of a surrogate pair waits for its other half: sent alone it would be a replacement character. */
  #take(): Piece[] {
    const taken = this.#pending;
    const last = taken.at(-1);
    this.#pending = [];
    this.#pendingChars = 0;
    if (this.#ended || last === undefined || !endsInHalf(last.text)) return taken;
    this.#pending.push({ ...last, text: last.text.slice(-1) });
    this.#pendingChars = 1;
    last.text = last.text.slice(0, -1);
    return last.text === "" ? taken.slice(0, -1) : taken;
  }
}

function endsInHalf(text: string): boolean {
  const code = text.charCodeAt(text.length - 1);
  return code >= 0xd800 && code <= 0xdbff;
}

function pieces(text: string): string[] {
  const cut: string[] = [];
  for (let rest = text; rest !== "";) {
    const [head, tail] = cutText(rest, MAX_TEXT_BYTES);
    cut.push(head);
    rest = tail;
  }
  return cut;
}
