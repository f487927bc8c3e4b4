/** Shows a model's answer while it comes, on a terminal: text as it is, reasoning and arguments of calls dimmed. */
import type { RunDelta } from "../domain/delta.ts";
import { printable, type Output } from "./output.ts";

const INDENT = "  ";

export class LiveText {
  readonly #out: Output;
  /** What the open line belongs to; undefined at the beginning of a line. */
  #open: string | undefined;
  #call = "";
  /** The `n` that comes next if nothing was left out. */
  #n = 0;

  constructor(out: Output) {
    this.#out = out;
  }

  async show(delta: RunDelta): Promise<void> {
    const { kind, index, name, text } = delta;
    const call = `${delta.turn}.${delta.attempt}`;
    const what = `${call} ${kind} ${index ?? ""}`;
    const isGap = delta.n !== (call === this.#call ? this.#n : 0);
    this.#call = call;
    this.#n = delta.n + 1;
    if (this.#open !== what) {
      await this.end();
      await this.#out.piece(INDENT);
      this.#open = what;
      if (kind === "tool_arguments") await this.#out.piece(this.#out.colors.dim(`→ ${printable(name ?? "")} `));
    }
    if (isGap) await this.#out.piece(this.#out.colors.dim("… "));
    const lines = printable(text).replaceAll("\n", `\n${INDENT}`);
    await this.#out.piece(kind === "text" ? lines : this.#out.colors.dim(lines));
  }

  /** Ends the line that is open, if one is. */
  async end(): Promise<void> {
    if (this.#open === undefined) return;
    this.#open = undefined;
    await this.#out.piece("\n");
  }
}
