/**
 * What a command says. Results go to standard output: tables for people, or with `--json` JSON and nothing else. Notes,
 * bars and logs go to standard error. A reader that closes early (`| head`) ends the command quietly.
 */
import { once } from "node:events";
import { stripVTControlCharacters } from "node:util";
import pc from "picocolors";

export type Colors = ReturnType<typeof pc.createColors>;

/** `isTTY` is undefined, not false, on a pipe; createColors would take that for "as the environment says", and CI=true says colour. */
function isTerminal(stream: { readonly isTTY?: boolean }): boolean {
  return stream.isTTY ?? false;
}

export class Output {
  readonly isJson: boolean;
  /** Standard output is a terminal. */
  readonly isTerminal: boolean = isTerminal(process.stdout);
  /** For standard output: plain when it is no terminal, or with NO_COLOR. */
  readonly colors: Colors;
  readonly #closed = new AbortController();

  constructor({ isJson }: { readonly isJson: boolean }) {
    this.isJson = isJson;
    this.colors = pc.createColors(pc.isColorSupported && this.isTerminal);
    process.stdout.on("error", (error: NodeJS.ErrnoException) => {
      if (error.code === "EPIPE") this.#closed.abort();
    });
    // Whoever reads our notes may go too; what we do does not depend on it.
    process.stderr.on("error", () => {});
  }

  /** Fires when nobody reads standard output any more. */
  get closed(): AbortSignal {
    return this.#closed.signal;
  }

  /** One line of the result. Resolves when there is room for the next: a slow reader must not fill our memory. */
  async line(text: string): Promise<void> {
    await this.piece(`${text}\n`);
  }

  /** A part of a line. */
  async piece(text: string): Promise<void> {
    if (this.#closed.signal.aborted) return;
    if (process.stdout.write(text)) return;
    try {
      await once(process.stdout, "drain", { signal: this.#closed.signal });
    } catch (error) {
      if (!this.#closed.signal.aborted) throw error;
    }
  }

  /** One JSON document on one line: the result with `--json`. */
  async value(value: unknown): Promise<void> {
    await this.line(JSON.stringify(value));
  }

  note(text: string): void {
    process.stderr.write(`${text}\n`);
  }
}

/** Text from models, tools and users, safe to show: control characters could move a terminal's cursor or set its title. */
export function printable(text: string): string {
  return stripVTControlCharacters(text).replaceAll(/(?![\n\t])\p{Cc}|\p{Bidi_Control}/gu, "\ufffd");
}

/** The same on one line and cut. */
export function brief(text: string, maxChars: number): string {
  const line = printable(text.slice(0, maxChars * 4))
    .replaceAll(/\s+/g, " ")
    .trim();
  return line.length > maxChars ? `${line.slice(0, maxChars - 1).toWellFormed()}…` : line;
}
