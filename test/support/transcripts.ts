/** Random transcripts as runs have them: reproducible from a seed, always valid, with everything that makes cutting hard. */
import type { Place } from "../../src/domain/compaction/types.ts";
import type { AssistantPart, Message, ToolCallPart, ToolResultPart, UserPart } from "../../src/domain/transcript/message.ts";

/** mulberry32: small, fast and the same everywhere. */
export class Dice {
  #state: number;
  constructor(seed: number) {
    this.#state = seed >>> 0;
  }

  next(): number {
    this.#state = (this.#state + 0x6d2b79f5) >>> 0;
    let t = this.#state;
    t = Math.imul(t ^ (t >>> 15), t | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 4_294_967_296;
  }

  /** From `min` to `max`, both included. */
  int(min: number, max: number): number {
    return min + Math.floor(this.next() * (max - min + 1));
  }

  chance(share: number): boolean {
    return this.next() < share;
  }

  pick<T>(items: readonly T[]): T {
    return items[this.int(0, items.length - 1)] as T;
  }
}

const WORDS = [
  "order",
  "W2378156",
  "flight",
  "HAT204",
  "naïve",
  "日本語のテキスト",
  "👩‍👩‍👧‍👦",
  "e\u0301",
  "src/app/main.ts",
  "$&",
  "</capstan-summary>",
  "must not refund",
  "19.99",
  "🇩🇪",
  "\uFFFD",
];
const TOOLS = ["read_file", "search", "refund", "send_mail", "clone_repo"];

export interface TranscriptShape {
  readonly interactive: boolean;
  /** Where reasoning with a signature stands: nowhere, at the start of each loop, in each response, or now and then. */
  readonly reasoning: "none" | "first" | "each" | "some";
  /** Share of results that are far larger than the others. */
  readonly hugeShare: number;
}

/** A run's view and the events that it comes from; `grow` appends whole units and leaves the run at a boundary. */
export class Transcript {
  readonly dice: Dice;
  readonly shape: TranscriptShape;
  view: Message[] = [];
  places: Place[] = [];
  nextSeq = 1;
  #isLoopStart = true;
  #calls = 0;

  constructor(seed: number, shape?: Partial<TranscriptShape>) {
    this.dice = new Dice(seed);
    this.shape = {
      interactive: this.dice.chance(0.4),
      reasoning: this.dice.pick(["none", "none", "first", "each", "some"]),
      hugeShare: this.dice.pick([0, 0, 0.05]),
      ...shape,
    };
    this.user();
  }

  grow(units: number): void {
    for (let i = 0; i < units; i++) {
      const last = this.view.at(-1);
      if (last?.role === "assistant" || this.dice.chance(this.shape.interactive ? 0.15 : 0.03)) this.user();
      else if (this.dice.chance(this.shape.interactive ? 0.15 : 0.02)) this.#answer();
      else this.#turn();
    }
  }

  user(parts: UserPart[] = this.#userParts()): void {
    this.#push({ role: "user", content: parts });
    this.#isLoopStart = true;
  }

  #userParts(): UserPart[] {
    const text: UserPart = { type: "text", text: `input ${this.nextSeq}: ${this.#text(1, 12)}` };
    if (!this.dice.chance(0.1)) return [text];
    return [{ type: "file", media_type: "image/png", sha256: `sha-${this.nextSeq}`, size_bytes: this.dice.int(10_000, 2_000_000) }, text];
  }

  #answer(): void {
    this.#push({ role: "assistant", content: [...this.#reasoning(), { type: "text", text: `answer ${this.nextSeq}: ${this.#text(1, 15)}` }] });
  }

  #turn(): void {
    const { dice } = this;
    const calls = Array.from({ length: dice.chance(0.2) ? dice.int(2, 6) : 1 }, (): ToolCallPart => {
      // Some vendors' models repeat their ids in every response.
      const call_id = dice.chance(0.1) ? `call_${this.#calls % 3}_${this.nextSeq}` : `call_${this.#calls}`;
      this.#calls++;
      return { type: "tool_call", call_id, name: dice.pick(TOOLS), input: { id: dice.pick(WORDS), n: dice.int(0, 9_999) } };
    });
    const text: AssistantPart[] = dice.chance(0.4) ? [{ type: "text", text: this.#text(1, 12) }] : [];
    this.#push({ role: "assistant", content: [...this.#reasoning(), ...text, ...calls] });
    // Results come in the order in which the calls end.
    const first = this.nextSeq;
    const parts = calls.map((_, i) => first + i);
    if (dice.chance(0.5)) parts.reverse();
    this.nextSeq += calls.length;
    const content = calls.map(({ call_id, name }): ToolResultPart => ({ type: "tool_result", call_id, name, ...this.#output() }));
    this.view.push({ role: "tool", content });
    this.places.push({ first, last: this.nextSeq - 1, parts });
    if (dice.chance(0.3)) this.nextSeq += dice.int(1, 3);
  }

  #output(): Pick<ToolResultPart, "output" | "is_error"> {
    const { dice } = this;
    if (dice.chance(this.shape.hugeShare)) return { output: this.#text(300, 1_200) };
    if (dice.chance(0.05)) return { output: "OUTCOME_UNKNOWN: the process died", is_error: true };
    return dice.chance(0.3) ? { output: { rows: [{ id: dice.pick(WORDS), total: dice.int(0, 99_999) }], note: this.#text(1, 10) } } : { output: this.#text(1, 25) };
  }

  #reasoning(): AssistantPart[] {
    const { reasoning } = this.shape;
    const has = reasoning === "each" || (reasoning === "first" && this.#isLoopStart) || (reasoning === "some" && this.dice.chance(0.4));
    this.#isLoopStart = false;
    return has ? [{ type: "reasoning", text: this.dice.chance(0.3) ? "" : this.#text(1, 20), metadata: { anthropic: { signature: `sig-${this.nextSeq}` } } }] : [];
  }

  #text(min: number, max: number): string {
    return Array.from({ length: this.dice.int(min, max) }, () => this.dice.pick(WORDS)).join(" ");
  }

  #push(message: Message): void {
    this.view.push(message);
    this.places.push({ first: this.nextSeq, last: this.nextSeq });
    this.nextSeq += this.dice.chance(0.3) ? this.dice.int(2, 4) : 1;
  }
}
